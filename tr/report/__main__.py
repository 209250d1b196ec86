"""Records to Markdown and plots.

python -m tr.report RECORD... [--output FOLDER] [--only PLOT...]   tables and plots
python -m tr.report RECORD --progress FIGURE                       one figure over commits
python -m tr.report --compare A B [--noise FRACTION]               two sets beside each other
python -m tr.report --draw NAME.plot.json...                       pictures from their data
python -m tr.report --readme                                       the README's figures

A RECORD is a file, a folder of them, or either at a git revision: REV:PATH.
"""

import argparse
import sys
from pathlib import Path

from tr.report import compare, pages, pictures, readme
from tr.report.found import all_of, one_set
from tr.report.plot import SUFFIX, load
from tr.report.plots.across import progress
from tr.report.record import write


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m tr.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("records", nargs="*", metavar="RECORD")
    made.add_argument("--output", type=Path, metavar="FOLDER", help="default: outputs/report")
    made.add_argument("--only", nargs="+", default=[], metavar="PLOT", help="the plots to draw")
    made.add_argument("--newest", action="store_true", help="of runs of one config, the last")
    made.add_argument("--progress", metavar="FIGURE", help="such as contexts.0.step_ms")
    made.add_argument("--noise", type=float, default=0.03, metavar="FRACTION")
    job = made.add_mutually_exclusive_group()
    job.add_argument("--compare", nargs=2, metavar=("A", "B"))
    job.add_argument("--draw", nargs="+", type=Path, metavar="PLOT")
    job.add_argument("--readme", action="store_true")
    return made


def draw(path: Path, output: Path | None) -> Path:
    """Pictures beside a plot's data, or in `output`."""
    if not path.name.endswith(SUFFIX):
        raise ValueError(f"{path}: expected a plot's data, NAME{SUFFIX}, got another name")
    plot, folder = load(path), output or path.parent
    for file, data in pictures.full(path.name.removesuffix(SUFFIX), plot).items():
        if not file.endswith(SUFFIX):
            write(folder / file, data)
    return folder


def run(given: argparse.Namespace) -> str:
    """Do what was asked for; what to print."""
    if given.readme:
        changed = readme.update()
        return f"changed: {', '.join(changed)}" if changed else "README.md is current"
    if given.draw:
        return "\n".join(dict.fromkeys(str(draw(path, given.output)) for path in given.draw))
    if given.compare:
        if not 0 <= given.noise < 1:
            raise ValueError(f"--noise {given.noise}: expected a fraction of 0 to 1, such as 0.03")
        a, b = given.compare
        text = compare.page(one_set(a), one_set(b), (a, b), given.noise)
        if given.output:
            pages.replace_folder(given.output, pages.sealed({}, text))
        return text if given.output is None else str(given.output / pages.PAGE)
    output = given.output or Path("outputs/report")
    records = all_of(given.records, given.newest)
    extra = {}
    if given.progress:
        for path in given.records:
            name = f"progress-{Path(path).stem}-{given.progress}"
            extra[name] = progress(Path(path), given.progress)
    pages.replace_folder(output, pages.whole(records, extra, given.only))
    return str(output / pages.PAGE)


def main(args: list[str] | None = None) -> int:
    made = parser()
    given = made.parse_args(args)
    alone = given.compare or given.draw or given.readme
    if bool(given.records) == bool(alone):
        made.error("give records, or one of --compare, --draw, --readme")
    try:
        print(run(given))
    except (ValueError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
