"""Weights arrive exactly as they were sent, whole or as changes, and whatever is damaged is refused."""

from __future__ import annotations

import copy
import pickle
import random
import zlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rlvr.cluster.weights.packing import WeightPacker, apply_updates, convert_model
from rlvr.cluster.weights.weight_updates import TensorBucket, WeightUpdate, WeightUpdateHistory
from rlvr.errors import ConfigError, RlvrError

SHAPE = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}


def model(seed: int = 0, dtype: torch.dtype = torch.bfloat16, *, tied: bool = True, vocabulary: int = 50) -> Any:
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, tie_word_embeddings=tied, **SHAPE)).to(dtype)


def tensors_of(net: Any) -> dict[str, torch.Tensor]:
    return dict(net.state_dict(keep_vars=True))


def carried(parcel: WeightUpdate) -> WeightUpdate:
    """As a transport gives it on: copied."""
    return replace(parcel, buckets=pickle.loads(pickle.dumps(list(parcel.buckets))))


def damaged(parcel: WeightUpdate) -> WeightUpdate:
    """With one bit changed in the last bucket, and the checksum that it had."""
    *others, last = parcel.buckets
    data = last.parts[0].data.copy()
    data[len(data) // 2] ^= 4
    parts = (replace(last.parts[0], data=data), *last.parts[1:])
    return replace(parcel, buckets=[*others, replace(last, parts=parts)])


def same(one: Any, other: Any) -> bool:
    """To the bit, also where a weight is not a number."""
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs)


def change(net: Any, seed: int, share: float = 0.02) -> None:
    """Other bits in some of the elements, of any kind: also signs, infinities and what is not a number."""
    draw = torch.Generator().manual_seed(seed)
    for weight in net.parameters():
        bits = weight.data.view(-1).view(torch.int16)
        chosen = torch.rand(len(bits), generator=draw) < share
        chosen[0] = chosen[-1] = True
        bits[chosen] = torch.randint(-(1 << 15), 1 << 15, (int(chosen.sum()),), generator=draw, dtype=torch.int16)


def sized(parcels: Iterable[WeightUpdate]) -> list[int]:
    return [sum(part.data.nbytes for bucket in parcel.buckets for part in bucket.parts) for parcel in parcels]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bucket", [100, 3000, 1 << 28])
def test_a_whole_copy_arrives_exactly_in_buckets_of_any_size(bucket: int, tied: bool) -> None:
    sent, got = model(tied=tied), model(1, tied=tied)
    parcel = carried(WeightPacker("whole", "bfloat16", bucket_bytes=bucket).pack(tensors_of(sent)))
    apply_updates(got, [parcel])
    assert same(sent, got) and sized([parcel]) == [parcel.num_bytes] == [sum(w.nbytes for w in sent.parameters())]
    assert max(sum(part.data.nbytes for part in one.parts) for one in parcel.buckets) <= bucket


def test_the_bytes_of_a_whole_copy_are_not_copied_on_the_way() -> None:
    sent = model()
    [bucket] = WeightPacker("whole", "bfloat16").pack(tensors_of(sent)).buckets
    places = {weight.data_ptr() for weight in sent.parameters()}
    assert {part.data.ctypes.data for part in bucket.parts} == places


@pytest.mark.parametrize("vectors", [True, False])
def test_weights_travel_in_the_precision_that_rollout_workers_compute_in(vectors: bool) -> None:
    sent = model(dtype=torch.float32)
    got = convert_model(model(1, torch.float32), "bfloat16", converts_vectors=vectors)
    parcel = carried(WeightPacker("whole", "bfloat16", converts_vectors=vectors).pack(tensors_of(sent)))
    apply_updates(got, [parcel])
    for name, weight in sent.named_parameters():
        expected = weight.to(torch.bfloat16) if vectors or weight.ndim > 1 else weight
        assert torch.equal(got.state_dict()[name], expected) and got.state_dict()[name].dtype == expected.dtype
    assert parcel.num_bytes == sum(weight.nbytes for weight in got.parameters())


def test_deltas_bring_any_collector_to_any_version_exactly() -> None:
    draw, trainer, packer, chain = (
        random.Random(0),
        model(vocabulary=500),
        WeightPacker("delta", "bfloat16", bucket_bytes=500, full_copy_interval=5),
        WeightUpdateHistory(),
    )
    versions, rollout_workers, deltas = list[Any](), dict[int, tuple[int, Any]](), 0
    for version in range(14):
        parcel = packer.pack(tensors_of(trainer))
        chain.add(version, carried(parcel))
        deltas += parcel.is_delta
        versions.append(copy.deepcopy(trainer))
        chain.free_unneeded_weights({version, max(0, version - 2)})
        for number in range(3):
            if draw.random() < 0.3:
                rollout_workers.pop(number, None)
            if draw.random() < 0.8:
                asked = max(0, version - draw.randrange(3))
                has, net = rollout_workers.get(number, (None, model(9, vocabulary=500)))
                apply_updates(net, chain.get_updates(asked, has))
                assert same(net, versions[asked])
                rollout_workers[number] = (asked, net)
        change(trainer, version)
    assert deltas == 11 and len(chain._updates) <= 7  # whole: 0, 5 and 10


def test_a_delta_has_the_size_of_what_changed() -> None:
    trainer, packer = model(vocabulary=20_000), WeightPacker("delta", "bfloat16")
    first = packer.pack(tensors_of(trainer))
    with torch.no_grad():
        for weight in trainer.parameters():
            weight.view(-1)[::50].mul_(1 + 1 / 128)  # the last bit, of 2 %
    second = packer.pack(tensors_of(trainer))
    assert second.is_delta and second.num_bytes < 0.012 * first.num_bytes and sized([second]) == [second.num_bytes]
    nothing = packer.pack(tensors_of(trainer))
    assert nothing.is_delta and nothing.num_bytes == 0 and len(nothing.checksums) == len(list(trainer.parameters()))


def test_where_nearly_everything_changed_a_whole_copy_is_sent() -> None:
    trainer, packer, got = model(), WeightPacker("delta", "bfloat16"), model(1)
    packer.pack(tensors_of(trainer))
    change(trainer, 1, share=0.9)
    parcel = packer.pack(tensors_of(trainer))
    assert not parcel.is_delta
    apply_updates(got, [carried(parcel)])
    change(trainer, 2, share=0.01)
    apply_updates(got, [carried(packer.pack(tensors_of(trainer)))])  # and it is the base of the next delta
    assert same(trainer, got)


def test_tensors_of_other_sizes_come_whole_with_each_delta() -> None:
    trainer, got = model(dtype=torch.float32), convert_model(model(1, torch.float32), "bfloat16", converts_vectors=False)
    packer = WeightPacker("delta", "bfloat16", converts_vectors=False)
    apply_updates(got, [carried(packer.pack(tensors_of(trainer)))])
    with torch.no_grad():
        for weight in trainer.parameters():
            weight.view(-1)[:3] += 0.25
    parcel = packer.pack(tensors_of(trainer))
    apply_updates(got, [carried(parcel)])
    assert parcel.is_delta and same(convert_model(trainer, "bfloat16", converts_vectors=False), got)


@pytest.mark.parametrize("way", ["whole", "delta"])
def test_bytes_that_changed_on_the_way_are_refused(way: str) -> None:
    trainer, packer, got = model(), WeightPacker("delta", "bfloat16", bucket_bytes=3000), model(1)
    first = packer.pack(tensors_of(trainer))
    if way == "delta":
        apply_updates(got, [carried(first)])
        change(trainer, 1)
        first = packer.pack(tensors_of(trainer))
    assert first.is_delta == (way == "delta")
    with pytest.raises(RlvrError, match="parts of the weights arrived with a wrong checksum"):
        apply_updates(got, [damaged(carried(first))])


def test_changes_of_other_weights_than_the_collector_has_are_refused() -> None:
    trainer, packer = model(), WeightPacker("delta", "bfloat16")
    packer.pack(tensors_of(trainer))
    change(trainer, 1)
    with pytest.raises(RlvrError, match=r"has a wrong checksum after the delta; a full copy is needed"):
        apply_updates(model(5), [carried(packer.pack(tensors_of(trainer)))])


def test_weights_of_another_model_are_refused() -> None:
    parcel = carried(WeightPacker("whole", "bfloat16").pack(tensors_of(model())))
    words = r"another model: model.embed_tokens.weight is bfloat16 \[50, 16\], here "
    with pytest.raises(RlvrError, match=words + r"bfloat16 \[60, 16\]"):
        apply_updates(model(vocabulary=60), [parcel])
    with pytest.raises(RlvrError, match=words + "no such tensor"):
        apply_updates(torch.nn.Linear(2, 2), [parcel])
    with pytest.raises(RlvrError, match=r"another model: 1 tensors are missing, such as lm_head.weight"):
        apply_updates(model(tied=False), [parcel])
    [bucket] = parcel.buckets
    with pytest.raises(RlvrError, match=r"another model: \d+ tensors are missing, such as model.embed_tokens.weight"):
        apply_updates(model(), [WeightUpdate([TensorBucket.from_parts(bucket.parts[1:])])])


def test_changes_outside_of_a_tensor_or_of_another_length_are_refused() -> None:
    trainer, packer = model(), WeightPacker("delta", "bfloat16")
    packer.pack(tensors_of(trainer))
    change(trainer, 1)
    [bucket] = packer.pack(tensors_of(trainer)).buckets
    part = bucket.parts[0]
    with pytest.raises(RlvrError, match=r"the changes of model.embed_tokens.weight end at element 1,\d\d\d, and it has 800"):
        apply_updates(model(), [WeightUpdate([TensorBucket.from_parts([replace(part, offset=500)])], is_delta=True)])
    with pytest.raises(RlvrError, match=r"the changes of model.embed_tokens.weight are not 3 of . and 2 bytes"):
        apply_updates(model(), [WeightUpdate([TensorBucket.from_parts([replace(part, num_changed=3)])], is_delta=True)])
    assert np.array_equal(part.data, bucket.parts[0].data)


class Net(torch.nn.Module):
    """Tensors of any kind, by name."""

    def __init__(self, **tensors: torch.Tensor) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))

    dtype = torch.bfloat16


def halves(count: int, value: float = 1.0) -> torch.Tensor:
    return torch.full((count,), value, dtype=torch.bfloat16)


def test_empty_tensors_and_single_numbers_travel_too() -> None:
    kinds = {"a": halves(1000), "none": halves(0), "one": halves(1).reshape(()), "gap_bytes": torch.zeros(0), "flag": torch.tensor(True)}
    sent, got, packer = (
        Net(**kinds),
        Net(**{name: torch.zeros_like(value) for name, value in kinds.items()}),
        WeightPacker("delta", "bfloat16"),
    )
    for number, value in enumerate([1.0, float("nan"), -0.0, float("-inf"), 1e-40, 0.0]):
        sent.get_parameter("a")[number] = value
        sent.get_parameter("one").fill_(value)
        parcel = packer.pack(tensors_of(sent))
        apply_updates(got, [carried(parcel)])
        assert parcel.is_delta == (number > 0)
        for name, tensor in sent.state_dict().items():
            other = got.state_dict()[name]
            assert torch.equal(other.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), name


def test_tensors_are_compared_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.cluster.weights.packing.COMPARE_CHUNK", 100)
    trainer, packer, got = model(), WeightPacker("delta", "bfloat16"), model(1)
    for seed in range(3):
        parcel = carried(packer.pack(tensors_of(trainer)))
        apply_updates(got, [parcel])
        assert same(trainer, got) and parcel.is_delta == (seed > 0)
        change(trainer, seed, share=0.05)


@pytest.mark.parametrize(
    "then", [{"b": halves(1000)}, {"a": halves(1001)}, {"a": halves(1)}, {"a": halves(1000), "b": halves(5)}, {}], ids=str
)
def test_tensors_that_get_another_name_or_size_are_sent_whole(then: dict[str, torch.Tensor]) -> None:
    packer = WeightPacker("delta", "bfloat16")
    packer.pack(tensors_of(Net(a=halves(1000), c=halves(3))))
    sent, got = Net(c=halves(3), **then), Net(c=halves(3), **{name: torch.zeros_like(value) for name, value in then.items()})
    parcel = packer.pack(tensors_of(sent))
    apply_updates(got, [carried(parcel)])
    assert not parcel.is_delta and same(sent, got)


def in_two() -> WeightUpdate:
    """Two tensors in two buckets each."""
    return carried(WeightPacker("whole", "bfloat16", bucket_bytes=8).pack(tensors_of(Net(a=halves(8, 2.0), b=halves(8, 3.0)))))


@pytest.mark.parametrize(
    ("field", "change"), [("name", lambda name: {"a": "b", "b": "a"}[name]), ("offset", lambda begin: 8 - begin)], ids=["name", "offset"]
)
def test_the_checksum_covers_where_bytes_belong(field: str, change: Any) -> None:
    parcel = in_two()
    moved = [
        replace(bucket, parts=tuple(replace(part, **{field: change(getattr(part, field))}) for part in bucket.parts))
        for bucket in parcel.buckets
    ]
    with pytest.raises(RlvrError, match="arrived with a wrong checksum"):
        apply_updates(Net(a=halves(8), b=halves(8)), [replace(parcel, buckets=moved)])


@pytest.mark.parametrize("order", [(0, 0, 2, 3), (1, 0, 2, 3), (0, 1, 2, 3, 3), (0, 1, 1, 2, 3)], ids=str)
def test_buckets_that_are_lost_repeated_or_out_of_order_are_refused(order: tuple[int, ...]) -> None:
    parcel = in_two()
    buckets: Any = parcel.buckets
    with pytest.raises(RlvrError, match=r"the parts of [ab] do not follow each other: 8 bytes from \d+ where byte \d+ of 16 comes next"):
        apply_updates(Net(a=halves(8), b=halves(8)), [replace(parcel, buckets=[buckets[place] for place in order])])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": np.frombuffer(b"not compressed", np.uint8)}, "cannot be decompressed: Error -3"),
        ({"data": np.frombuffer(zlib.compress(bytes(1 << 20)), np.uint8)}, r"are not \d+ of \d and 2 bytes"),
        ({"num_changed": 1 << 40}, "1,099,511,627,776 changes of model.embed_tokens.weight from 0, of \\d bytes: it has 800 elements"),
        ({"num_changed": -1}, "-1 changes"),
        ({"offset": -5}, "from -5"),
        ({"gap_bytes": 3}, "of 3 bytes"),
    ],
    ids=["garbage", "bomb", "too many", "negative", "before", "width"],
)
def test_changes_that_cannot_be_are_refused_in_words(changes: dict[str, Any], words: str) -> None:
    trainer, packer, got = model(), WeightPacker("delta", "bfloat16"), model(1)
    apply_updates(got, [carried(packer.pack(tensors_of(trainer)))])
    change(trainer, 1)
    parcel = carried(packer.pack(tensors_of(trainer)))
    [bucket] = parcel.buckets
    bad = TensorBucket.from_parts([replace(bucket.parts[0], **changes), *bucket.parts[1:]])
    with pytest.raises(RlvrError, match=words):
        apply_updates(got, [replace(parcel, buckets=[bad])])


@pytest.mark.parametrize(("order", "right"), [((0, 1, 2), True), ((1, 2), False), ((0, 0, 1, 2), False), ((0, 1), None)], ids=str)
def test_deltas_that_are_skipped_or_repeated_are_refused(order: tuple[int, ...], right: bool | None) -> None:
    trainer, packer, got, parcels = model(), WeightPacker("delta", "bfloat16"), model(1), list[WeightUpdate]()
    apply_updates(got, [carried(packer.pack(tensors_of(trainer)))])
    for seed in range(3):
        change(trainer, seed)
        parcels.append(carried(packer.pack(tensors_of(trainer))))
    if right is False:
        with pytest.raises(RlvrError, match="a full copy is needed"):
            apply_updates(got, [parcels[at] for at in order])
        return
    apply_updates(got, [parcels[at] for at in order])
    assert same(trainer, got) == bool(right)  # without the last one it is the version before


def test_a_delta_without_the_checksums_of_all_tensors_is_refused() -> None:
    trainer, packer, got = model(), WeightPacker("delta", "bfloat16"), model(1)
    apply_updates(got, [carried(packer.pack(tensors_of(trainer)))])
    parcel = carried(packer.pack(tensors_of(trainer)))
    with pytest.raises(RlvrError, match=r"\d+ tensors are missing, such as model.embed_tokens.weight"):
        apply_updates(got, [replace(parcel, checksums={})])
    with pytest.raises(RlvrError, match="of another model: it has other, and here is no such tensor"):
        apply_updates(got, [replace(parcel, checksums={**parcel.checksums, "other": 1})])


def test_float32_weights_have_no_delta() -> None:
    words = (
        r"cluster.weight_transfer is delta, but rollout workers compute in float32, where an update changes nearly every weight; set model"
    )
    with pytest.raises(ConfigError, match=words):
        WeightPacker("delta", "float32")
