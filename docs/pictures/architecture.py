"""Draw `architecture.svg`: the layers of the packages, and a training step in order.

python docs/pictures/architecture.py
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

LAYERS = [
    ["cli", "api"],
    ["training", "cluster", "serve", "viewer"],
    ["evaluation", "conformance", "integrations"],
    ["rollout"],
    ["samplers", "algorithms", "envs", "verifiers", "sandbox", "tools"],
    ["mdp", "chat", "gateway", "models", "runs"],
    ["registry", "config"],
    ["contracts", "extraction", "records, errors"],
]
"""From the top: a package imports what stands below it, never a neighbour of another kind."""
STEP = [
    ("Trainer.step", "rlvr/training/trainer.py", "one step, from the batch to the log"),
    ("BatchSource.next", "rlvr/training/batch_sources.py", "tasks of the step become requests"),
    ("Environment.task", "envs/arithmetic.py", "a prompt and a reference"),
    ("Conversation", "rlvr/rollout/conversation.py", "sampled and verified, many at a time"),
    ("TokenMDP", "rlvr/mdp/token_mdp.py", "the rules: append, reply, limits"),
    ("Sampler.stream_from_queue", "rlvr/samplers/hf.py", "token ids with log-probabilities"),
    ("Verifier.verify", "verifiers/numeric.py", "a score, or none"),
    ("compute_advantages", "rlvr/algorithms/base/policy_gradient.py", "the scores of a group, per token"),
    ("Learner.update", "rlvr/training/update/learner.py", "rows, forward, loss, backward, step"),
    ("Sampler.update_weights", "rlvr/contracts/sampler.py", "the sampler gets the new weights"),
    ("Callback", "rlvr/training/callbacks.py", "progress, logs, checkpoints"),
]
WIDTH, HEIGHT, ROW = 1180, 676, 60
STYLE = """
.box { fill: #eef3f8; stroke: #7d93a8; } .plugin { fill: #e9f4ea; stroke: #7fa583; }
.name { font: 600 14px system-ui, sans-serif; fill: #1d2733; } .path { font: 12px ui-monospace, monospace; fill: #5a6875; }
.note { font: 13px system-ui, sans-serif; fill: #33404d; } .title { font: 600 16px system-ui, sans-serif; fill: #1d2733; }
.line { stroke: #7d93a8; stroke-width: 1.5; fill: none; }
"""


def draw() -> str:
    """The picture as SVG."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT + 60}" role="img" '
        f'aria-label="The layers of rlvr, and a training step in order"><style>{STYLE}</style>',
        f'<rect width="{WIDTH}" height="{HEIGHT + 60}" fill="#ffffff"/>',
        '<text class="title" x="20" y="32">Packages: each imports only what stands below it</text>',
        '<text class="title" x="640" y="32">One training step, read in order</text>',
    ]
    for place, names in enumerate(LAYERS):
        top, gap = 50 + place * 76, 8
        wide = (580 - gap * (len(names) - 1)) / len(names)
        for column, name in enumerate(names):
            left = 20 + column * (wide + gap)
            kind = "plugin" if place == 4 else "box"
            parts.append(f'<rect class="{kind}" x="{left:.1f}" y="{top}" width="{wide:.1f}" height="52" rx="6"/>')
            parts.append(f'<text class="name" x="{left + wide / 2:.1f}" y="{top + 31}" text-anchor="middle">{escape(name)}</text>')
    parts.append(
        '<text class="note" x="20" y="690">Green: the six kinds of plugin, one file each. None imports another kind;</text>'
        '<text class="note" x="20" y="710">the registry joins them by name.</text>'
    )
    for place, (name, path, note) in enumerate(STEP):
        top = 50 + place * ROW
        parts.append(f'<rect class="box" x="640" y="{top}" width="520" height="46" rx="6"/>')
        parts.append(f'<text class="name" x="654" y="{top + 20}">{place + 1}. {escape(name)}</text>')
        parts.append(f'<text class="note" x="654" y="{top + 38}">{escape(note)}</text>')
        parts.append(f'<text class="path" x="1148" y="{top + 20}" text-anchor="end">{escape(path)}</text>')
        if place:
            parts.append(f'<path class="line" d="M900 {top - 16} v14 m-4 -5 l4 5 l4 -5"/>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(draw(), "utf-8")
