"""Check a command line before Hydra acts on it, and put every complaint into one sentence."""

import contextlib
import itertools
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, get_type_hints

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError, safe_load

from tr.config import GROUPS, PLANNED, ROOTS, check_choice, register, unknown

CONFIGS = Path(__file__).parents[1] / "configs"
ADDED = ("exp", "sweep")  # the only groups that `+` may add
_ADDING = tuple(f"+{group}" for group in ADDED)
MULTIRUN = ("-m", "--multirun")
FLAGS = (*MULTIRUN, "--cfg=job", "--resolve")
LAUNCHER = "hydra/launcher"
LAUNCHERS = {  # by name: the package that it needs, and what it is
    "joblib": ("hydra-joblib-launcher", "Processes here, hydra.launcher.n_jobs at a time."),
    "submitit_local": ("hydra-submitit-launcher", "A process per job, all at once: to try out."),
    "submitit_slurm": (
        "hydra-submitit-launcher",
        "A Slurm job each: hydra.launcher.partition, gpus_per_node, timeout_min (60), mem_gb, ...",
    ),
    "ray": ("ray", "Ray tasks; on a cluster with hydra.launcher.init.address=auto."),
}
MISTAKE, INTERRUPTED = 2, 130  # how a command exits
SWEEPS = (  # what --help says of them
    "  Jobs, a table and report.md go to output=FOLDER (default: outputs/sweep/NAME-EXPERIMENT).",
    "  The same command again goes on where it was stopped: it runs what the folder lacks or what",
    "  failed. Exit codes: 0 all exact, 1 some not exact, 2 a mistake, 3 some failed, 130 stopped.",
)

register()


def choices(group: str, configs: Path = CONFIGS) -> list[str]:
    return sorted(path.stem for path in (configs / group).glob("*.yaml"))


def groups(configs: Path = CONFIGS) -> list[str]:
    others = (*ADDED, "hydra")
    return sorted(p.name for p in configs.iterdir() if p.is_dir() and p.name not in others)


def literal(text: str) -> str:
    """`text` quoted so that Hydra and OmegaConf give back these very characters."""
    text = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)  # no interpolation
    text = re.sub(r"(\\*)'", r"\1\1\\'", text)
    trailing = len(text) - len(text.rstrip("\\"))
    return f"'{text}{chr(92) * trailing}'"


@dataclass(frozen=True)
class Job:
    overrides: tuple[str, ...]  # in Hydra's strict grammar
    config: Any


@dataclass(frozen=True)
class Line:
    """A checked command line."""

    strict: list[str]  # all of it in Hydra's strict grammar
    engine: list[str]  # Hydra's own settings, a launcher's, say
    jobs: list[Job]
    sweep: str  # its name, or empty
    output: str  # under --multirun, output=FOLDER


def load(args: list[str], root: str = "config", configs: Path = CONFIGS) -> Any:
    """The checked config of one job, without Hydra's own run; raises ValueError."""
    return read(args, root, configs).jobs[0].config


def is_multirun(args: Sequence[str]) -> bool:
    return any(flag in args for flag in MULTIRUN)


def command(name: str, root: str, run: Callable[[Any], None]) -> int:
    """`python -m NAME` of one job: `run` gets its config; the exit code. A mistake is one line."""
    args = sys.argv[1:]
    if "-h" in args or "--help" in args:
        print(usage(name, root))
        return 0
    try:
        run(load(args, root))
    except (ValueError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return MISTAKE
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return INTERRUPTED
    return 0


def resolve(args: list[str], root: str = "config", configs: Path = CONFIGS) -> list[str]:
    """The same command line in Hydra's strict grammar; raises ValueError naming what is wrong.

    A value of a text field is taken as it stands (spaces, commas, equal signs, braces), except
    under --multirun, where commas separate jobs. Every job is composed and checked.
    """
    return read(args, root, configs).strict


def read(args: list[str], root: str = "config", configs: Path = CONFIGS) -> Line:
    """A command line and every job of it, composed and checked; raises ValueError.

    Overrides of a sweep's file come first, but for keys that the command line gives too.
    """
    flags = [arg for arg in args if arg.startswith("-")]
    for flag in flags:
        if flag not in FLAGS:
            raise ValueError(unknown("unknown flag", flag, (*FLAGS, "--help")))
    multirun = is_multirun(flags)
    if multirun and "--cfg=job" in flags:
        raise ValueError("--cfg=job shows the config of one job; leave out -m")
    sweeps = [arg for arg in args if arg.startswith("+sweep=")]
    if sweeps and not multirun:
        raise ValueError(f"{sweeps[0]} runs many jobs: add -m")
    if len(sweeps) > 1:
        raise ValueError(f"expected one sweep, got {' '.join(sweeps)}")
    name = sweeps[0].partition("=")[2] if sweeps else ""
    rest = [arg for arg in args if arg not in flags and arg not in sweeps]
    if sweeps:
        check_choice("sweep", name, choices("sweep", configs))
        rest = [*beneath(rest, sweep_overrides(name, configs)), *rest]
    known = groups(configs)
    picks: list[str] = []  # group choices
    leaves: list[tuple[str, str]] = []
    own: list[str] = []  # Hydra's own settings
    output = ""
    for arg in rest:
        key, equals, value = arg.partition("=")
        if arg.startswith("~") or not equals:
            raise ValueError(f"expected key=value, got {arg!r}")
        if arg.startswith("+"):
            if key.removeprefix("+") not in ADDED:
                raise ValueError(unknown("+ adds only an exp or a sweep, not", key, _ADDING))
            picks.append(arg)
        elif key in ADDED:
            raise ValueError(f"write +{arg}")
        elif key == "output" and multirun:
            output = value
        elif key.startswith(("hydra.", "hydra/")):
            if multirun and key.startswith(("hydra.sweep", "hydra/sweep")):
                raise ValueError(f"{key} has no effect here; output=FOLDER names a sweep's folder")
            if key == LAUNCHER:
                check_launcher(value)
            own.append(arg)
        elif key in known:
            picks.append(arg)
        else:
            leaves.append((key, value))

    expanded = [_expand(pick, multirun) for pick in picks]
    for value in itertools.chain(*expanded):
        group, _, choice = value.lstrip("+").partition("=")
        check_choice(group, choice, choices(group, configs), PLANNED.get(group, ()))
    strict: list[str] = []
    jobs: list[Job] = []
    for job in itertools.product(*expanded):
        base = compose([*job, *own], root, configs)
        strict = [_leaf(base, key, value, multirun) for key, value in leaves]
        for values in itertools.product(*(_expand(leaf, multirun) for leaf in strict)):
            whole = compose([*job, *values], root, configs) if values else base
            jobs.append(Job((*job, *values), to_object(whole)))
    return Line([*flags, *picks, *strict, *own], own, jobs, name, output)


def check_launcher(name: str) -> None:
    check_choice(LAUNCHER, name, LAUNCHERS)
    package = LAUNCHERS[name][0]
    try:
        distribution(package)
    except PackageNotFoundError as error:
        raise ValueError(
            f"{LAUNCHER}={name} needs the package {package}; pip install '.[launchers]'"
        ) from error


def sweep_overrides(name: str, configs: Path = CONFIGS) -> list[str]:
    """What a sweep's file stands for: `hydra.sweeper.params`, as on a command line."""
    path = configs / "sweep" / f"{name}.yaml"
    try:
        params = safe_load(path.read_text(encoding="utf-8"))["hydra"]["sweeper"]["params"]
        return [f"{key}={_text(value)}" for key, value in params.items()]
    except (YAMLError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"configs/sweep/{name}.yaml: expected KEY: VALUE,VALUE under hydra.sweeper.params,"
            f" got {type(error).__name__}: {' '.join(str(error).split())}"
        ) from error


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def beneath(args: list[str], lower: list[str]) -> list[str]:
    """Those of `lower` that `args` leave standing; an experiment's options go with it."""

    def key(arg: str) -> str:
        name = arg.partition("=")[0].lstrip("+")
        return "exp" if name == "run" else name

    given = {key(arg) for arg in args}
    kept = [arg for arg in lower if key(arg) not in given]
    return [arg for arg in kept if not ("exp" in given and key(arg).startswith("params."))]


def compose(overrides: list[str], root: str = "config", configs: Path = CONFIGS) -> DictConfig:
    inside = GlobalHydra.instance().is_initialized()  # in a job of Hydra's, over the same folder
    folder = str(configs.resolve())
    start = hydra.initialize_config_dir
    with contextlib.nullcontext() if inside else start(folder, version_base="1.3"):
        try:
            return hydra.compose(root, overrides)
        except (HydraException, OmegaConfBaseException, YAMLError) as error:
            raise ValueError(explain(error, configs)) from error


def to_object(config: DictConfig) -> Any:
    """The checked dataclass; raises ValueError."""
    try:
        return OmegaConf.to_object(config)
    except OmegaConfBaseException as error:
        raise ValueError(explain(error, CONFIGS)) from error


def _expand(override: str, multirun: bool) -> list[str]:
    """The jobs of one override: one, or several under --multirun."""
    try:
        parsed = OverridesParser.create().parse_override(override)
    except HydraException as error:
        key, _, value = override.partition("=")
        hint = f"{key}={literal(value)}"
        raise ValueError(f'cannot read {override!r}; as text it is written "{hint}"') from error
    if not parsed.is_sweep_override():
        return [override]
    if not multirun:
        raise ValueError(f"{override!r} gives several values: add -m to run a job for each")
    prefix = override.partition("=")[0]
    try:
        values = list(parsed.sweep_string_iterator())
    except HydraException as error:
        raise ValueError(f"{override!r}: write the values out, as {prefix}=A,B") from error
    if not values:
        raise ValueError(f"{override!r} is an empty axis: it gives no value")
    return [f"{prefix}={value}" for value in values]


def _leaf(base: DictConfig, key: str, value: str, multirun: bool) -> str:
    """`key=value` for Hydra; the key must exist in the composed config."""
    head, _, rest = key.partition(".")
    if head == "params" and rest:  # the experiment's own options, checked against its Options
        return f"++{key}={value}"
    node: Any = base
    path = key.split(".")
    for depth, part in enumerate(path):
        if not isinstance(node, DictConfig):
            break
        names = [str(name) for name in node.keys()]
        if part not in names:
            schema = getattr(OmegaConf.get_type(node), "__name__", "dict")
            where = f" of {'.'.join(path[:depth])} ({schema})" if depth else ""
            raise ValueError(unknown(f"unknown key{where}", part, names))
        parent, node = node, node._get_node(part)
    if OmegaConf.get_type(node) is dict and value.startswith("{"):  # entries of a mapping
        return f"++{key}={value}"
    if isinstance(node, DictConfig):
        raise ValueError(f"{key}={value}: {key} holds several values; set one of {list(node)}")
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    is_text = get_type_hints(OmegaConf.get_type(parent) or object).get(path[-1]) is str
    if not value and not is_text:
        raise ValueError(f"{key}= gives no value")
    return f"{key}={literal(value) if is_text and not quoted and not multirun else value}"


def explain(error: Exception, configs: Path = CONFIGS) -> str:
    """One sentence for a composition error; typing errors get the nearest valid name."""
    text = str(error)
    if error.__cause__ is not None and text.startswith("Error merging override"):
        text = str(error.__cause__)
    source = re.search(r"In '([^']+)': ", text)
    where = f"configs/{source[1]}.yaml: " if source and source[1] not in ROOTS else ""
    if found := re.search(r"Could not find '([^']*?)/?([^'/]+)'", text):
        group, name = found[1], found[2]
        if group in groups(configs) or group in ADDED:
            return unknown(f"{where}no such choice: {group}", name, choices(group, configs))
        return unknown(f"{where}unknown group", group or name, groups(configs))
    if found := re.search(r"Could not override '([^']+)'. No match in the defaults list", text):
        return unknown(f"{where}unknown group", found[1], groups(configs))
    found = re.search(r"Key '(.+?)' not in '(\w+)'", text)
    if found and _fields(found[2]):  # not a launcher's own
        return unknown(f"{where}unknown key of {found[2]}", found[1], _fields(found[2]))
    if found := re.search(r"full_key: (\S+)", text):
        reason = text.partition("\n    full_key")[0].splitlines()[-1]
        return f"{where}{found[1]}: {reason}"
    return where + " ".join(text.partition("\nConfig search path")[0].split())


def _fields(schema: str) -> list[str]:
    schemas = [cls for group in GROUPS.values() for cls in group.values()] + [*ROOTS.values()]
    return [name for cls in schemas if cls.__name__ == schema for name in get_type_hints(cls)]


def description(path: Path) -> str:
    """The first comment line of a YAML file, past its `# @package` line."""
    lines = (line.removeprefix("# ") for line in path.read_text().splitlines() if line[:1] == "#")
    return next((line for line in lines if not line.startswith("@package")), "")


def usage(command: str, root: str = "config", group: str = "", configs: Path = CONFIGS) -> str:
    """What --help prints: experiments, groups and values; or one group's choices in full."""
    if group:
        if group not in (*groups(configs), *ADDED):
            raise ValueError(unknown("unknown group", group, (*groups(configs), *ADDED)))
        return "\n".join(_described(group, configs))
    tree = safe_load((configs / f"{root}.yaml").read_text())
    defaults = {
        k: v for item in tree["defaults"] if isinstance(item, dict) for k, v in item.items()
    }
    lines = [f"python -m {command} [key=value ...]", ""]
    if root == "config":
        lines += ["Experiments, +exp=NAME (without it: dflash2_verify)"]
        lines += [*_described("exp", configs), ""]
        lines += ["Sweeps, -m +sweep=NAME [+exp=NAME] [KEY=A,B ...]: a job for each combination"]
        lines += [*_described("sweep", configs), *SWEEPS, ""]
        lines += [f"Where a sweep's jobs run, {LAUNCHER}=NAME (without it: here, one by one)"]
        lines += [*(f"  {name:<16}{told}" for name, (_, told) in LAUNCHERS.items()), ""]
    lines += ["Groups, GROUP=NAME (the default in brackets); --help GROUP describes each"]
    for name in groups(configs):
        if name in defaults:
            marked = [f"[{c}]" if c == defaults[name] else c for c in choices(name, configs)]
            lines.append(f"  {name:<10}{' '.join(marked)}")
    values = [name for name in get_type_hints(ROOTS[root]) if name not in groups(configs)]
    return "\n".join([*lines, "", f"Values, KEY=VALUE: {', '.join(values)}; and GROUP.KEY=VALUE"])


def _described(group: str, configs: Path) -> list[str]:
    names = choices(group, configs)
    width = max(map(len, names), default=0) + 2
    return [f"  {n:<{width}}{description(configs / group / f'{n}.yaml')}" for n in names]
