"""The spec of an algorithm: its component functions and the defaults of its settings, from which the algorithm is built.

The settings are the keyword parameters of the components and the common settings of the base class. Replacing a component by your own
function (`algorithm: {name: grpo, advantage: mine.py:median}`) adds the function's settings and keeps the others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

from rlvr.algorithms.base.settings import (
    SETTINGS,
    UNKNOWN_SETTING,
    check_setting_value,
    coerce_setting,
    find_inactive_settings,
    format_unknown_settings,
)
from rlvr.contracts.algorithm import TRAITS_BY_NAME, TokenStats
from rlvr.errors import ConfigError, format_suggestion
from rlvr.registry.plugins import load_factory

Function = Callable[..., Any]
DECLARABLE_INPUTS = frozenset(field.name for field in fields(TokenStats)) - {"penalties"}
"""The fields of `TokenStats` that a component function asks for by their name."""
DECLARABLE_TRAITS = frozenset((*TRAITS_BY_NAME, *DECLARABLE_INPUTS, "noop_on_policy", "per_token"))


def declare_traits(
    *traits: str,
    frozen_models: tuple[str, ...] = (),
    compute_token_batch_stats: Function | None = None,
    noop_on_policy: tuple[str, ...] = (),
) -> Callable[[Function], Function]:
    """Declare the traits of a component function, by the names of the records in `rlvr.contracts.algorithm`:

    - a field of `AlgorithmTraits`, which becomes true (`TRAITS_BY_NAME`): requires_group, skips_zero_variance, requires_multi_turn,
      needs_greedy_sample, needs_kl_samples, needs_token_context; backprop_zero_advantage, for a loss that has a gradient where the
      advantage is 0
    - a field of `TokenStats` (`DECLARABLE_INPUTS`), such as old_logprobs, reference_logprobs, entropy or values: an advantage gets it in its `AnswerBatch`;
      a loss gets it if `LossInputs` has a field of that name (`old_entropy` and `old_values` for entropy and values)
    - per_token: the advantage returns one number per token, not one per answer
    - noop_on_policy: all settings of this loss do nothing where every ratio is 1; the keyword `noop_on_policy` names some of them

    `frozen_models` names models of which a loss needs the log-probabilities of every token, and finds them in `x.frozen_logprobs[name]`. A
    run gives each a folder: `frozen_models.NAME=PATH`.

    `compute_token_batch_stats` is called with the columns of all tokens before each optimizer step; the loss receives its result as
    `x.batch_stats`.
    """
    if unknown := [trait for trait in traits if trait not in DECLARABLE_TRAITS]:
        raise ConfigError(f"there is no trait {unknown[0]!r}; {format_suggestion(unknown[0], sorted(DECLARABLE_TRAITS))}")

    def marked(function: Function) -> Function:
        vars(function).update(
            traits=frozenset(traits),
            frozen_models=frozen_models,
            compute_token_batch_stats=compute_token_batch_stats,
            noop_on_policy=noop_on_policy,
        )
        return function

    return marked


def _get_traits(function: Function) -> frozenset[str]:
    """Return the traits that `declare_traits` declared; empty for an undecorated function."""
    found: frozenset[str] = getattr(function, "traits", frozenset())
    return found


class AlgorithmSpec:
    """The definition of one algorithm. Calling it with settings builds the algorithm.

    >>> from rlvr.algorithms.grpo import make
    >>> make(epsilon=0.1).settings.epsilon
    0.1
    """

    validates_settings = True
    """Tells the registry to skip its own check of settings: replaced components may add settings that the registry does not know."""

    def __init__(self, base: Any, name: str, about: str | None, components: Mapping[str, Function], defaults: Mapping[str, Any]) -> None:
        """`base` is the class to build; its `common_settings` apply to all its algorithms."""
        self.base, self.name, self.__doc__ = base, name.rpartition(".")[2], about
        self.components, self.defaults = dict(components), dict(defaults)
        fields = (
            base.common_settings
            | self.collect_defaults_and_types()
            | ({"advantage": ("", "str"), "loss": ("", "str")} if "loss" in components else {})
        )
        self.setting_types = {key: kind for key, (_, kind) in fields.items()}
        self.default_settings = {key: defaults.get(key, value) for key, (value, _) in fields.items()}
        """The settings and their defaults."""
        self.traits = frozenset().union(*map(_get_traits, self.components.values()))
        self.frozen_models = tuple(dict.fromkeys(name for part in self.components.values() for name in getattr(part, "frozen_models", ())))
        if "values" not in self.traits:
            self.default_settings = {key: value for key, value in self.default_settings.items() if key not in base.critic_settings}

    def collect_defaults_and_types(self) -> dict[str, tuple[Any, str]]:
        """Return the default and the type of each keyword parameter of all components."""
        return {key: value for part in self.components for key, value in self.get_component_defaults_and_types(part).items()}

    def get_component_defaults_and_types(self, component_name: str) -> dict[str, tuple[Any, str]]:
        """Return the default and the type of each keyword parameter of one component."""
        found = {}
        for name, p in inspect.signature(self.components[component_name]).parameters.items():
            if p.kind is inspect.Parameter.KEYWORD_ONLY:
                kind = p.annotation if isinstance(p.annotation, str) else getattr(p.annotation, "__name__", str(p.annotation))
                found[name] = (p.default, "" if p.annotation is p.empty else kind)
        return found

    def replace_components(self, settings: Mapping[str, Any]) -> AlgorithmSpec:
        """Return a spec with the components that the settings `advantage` and `loss` name; these may add settings."""
        named = {key: settings[key] for key in ("advantage", "loss") if key in self.components and settings.get(key)}
        if not named:
            return self
        swapped = {key: _load_component(key, target) for key, target in named.items()}
        return AlgorithmSpec(self.base, self.name, self.__doc__, self.components | swapped, self.defaults)

    def __call__(self, **given: Any) -> Any:
        """Build the algorithm; raise ConfigError for a setting that is unknown, invalid, or without effect."""
        spec = self.replace_components(given)
        if lost := {key: value for key, value in self.defaults.items() if key not in self.setting_types}:
            raise ConfigError(f"the definition of {format_unknown_settings(self.name, lost, self.default_settings)}")
        given = {key: f"{value.__module__}:{value.__qualname__}" if inspect.isfunction(value) else value for key, value in given.items()}
        if unknown := {key: value for key, value in given.items() if key not in spec.default_settings}:
            raise ConfigError(format_unknown_settings(self.name, unknown, spec.default_settings))
        chosen = {key: coerce_setting(key, value, spec.setting_types[key]) for key, value in given.items()}
        changed = {
            key: coerce_setting(key, value, spec.setting_types[key]) for key, value in self.defaults.items() if key in spec.default_settings
        }
        settings = spec.default_settings | changed | chosen
        for key, value in settings.items():
            check_setting_value(key, value)
        reasons = find_inactive_settings(settings)
        for key, value in chosen.items():
            if key in reasons and value != spec.default_settings[key]:
                raise ConfigError(f"{key}={value!r} has no effect because {reasons[key]}; change that, or remove {key}")
        return spec.base(spec, settings)

    def bind_settings(self, component_name: str, settings: Mapping[str, Any]) -> Function:
        """Return a component with its settings bound."""
        function, own = (
            self.components[component_name],
            {name: settings[name] for name in self.get_component_defaults_and_types(component_name)},
        )
        return partial(function, **own)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.Signature(
            [
                inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=self.setting_types[key])
                for key, value in self.default_settings.items()
            ]
        )

    @property
    def setting_descriptions(self) -> dict[str, str]:
        """The description of each setting, for `rlvr show`."""
        return {key: SETTINGS.get(key, UNKNOWN_SETTING).description for key in self.default_settings}

    @property
    def settings_inactive_by_default(self) -> list[str]:
        """The settings that have no effect with the default values of the others."""
        return list(find_inactive_settings(self.default_settings))


def _load_component(component_name: str, target: Any) -> Function:
    """Load a component: that of another algorithm, a function, or a function in a file."""
    if inspect.isfunction(target):
        return _check_component_parameters(component_name, target, target.__name__)
    if not isinstance(target, str):
        raise ConfigError(f"{component_name} is {target!r}; it must be the name of an algorithm, a function, or path/to/file.py:function")
    found = load_factory("algorithm", target)
    parts = getattr(found, "components", None)
    if parts is None:
        return _check_component_parameters(component_name, found, target)
    if component_name not in parts:
        raise ConfigError(f"{component_name} is {target!r}, which has no such component: it is not a policy-gradient algorithm")
    function: Function = parts[component_name]
    return function


def _check_component_parameters(component_name: str, function: Function, shown_name: str) -> Function:
    """Return a component; raise ConfigError unless it takes one value by position and can do without its other parameters."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a function without a signature, such as one written in C
        return function
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p.name for p in positional if p.default is p.empty]
    if len(needed) > 1 or not (positional or any(p.kind is p.VAR_POSITIONAL for p in parameters)):
        raise ConfigError(
            f"{component_name} is {shown_name}({', '.join(needed)}); it is called with one value, "
            f"{'the answers of a batch' if component_name == 'advantage' else 'the log-probabilities and advantages of a batch'}; "
            f"write def {function.__name__}(batch, *, setting=default)"
        )
    return function
