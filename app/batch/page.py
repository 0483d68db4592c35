"""``index.html``: all scenes on one page without external files."""

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from stream_recon.app.batch.store import Store
from stream_recon.app.batch.summary import SHOWN, Row
from stream_recon.app.result.tracks import DAMAGE, read_arrays
from stream_recon.app.result.verdict import Verdict

PAGE_NAME = "index.html"
PLOT_SIZE = 220
"""Side of a trajectory plot in pixels, the height of the picture next to it."""
CLASSES = {"good": "good", "unsure": "doubtful", "doubtful": "doubtful", "failed": "wrong"}
"""Style of each verdict. "failed" is the style of a scene without a result."""
PLOT_MARGIN = 12
"""Margin of the plot in pixels, for lines and the circle at its edge."""
STYLE = """
:root { color-scheme: light dark; --line: #8886; --ours: #e4572e; --truth: #2e86ab; --bad: #c0392b; --unsure: #b7791f;
  --fine: #2f855a; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.05rem; margin: 0 0 .4rem; overflow-wrap: anywhere; }
article { border: 1px solid var(--line); border-radius: 8px; padding: .8rem 1rem; margin: 1rem 0; }
.row { display: flex; flex-wrap: wrap; gap: 1rem; align-items: flex-start; }
img, svg { height: 220px; border-radius: 4px; background: #8881; } img { width: 300px; object-fit: contain; }
table { border-collapse: collapse; display: block; overflow-x: auto; font-size: .87em; }
th { font-weight: normal; color: #888; } tr:last-child td { border: 0; }
th, td { padding: .2rem .7rem .2rem 0; border-bottom: 1px solid var(--line); white-space: nowrap; text-align: right;
  font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; max-width: 13rem; overflow: hidden; text-overflow: ellipsis; }
dl { display: grid; grid-template-columns: repeat(auto-fill, 7.5rem 4rem); gap: .1rem .9rem; margin: 0;
  align-content: start; flex: 1 1 13rem; }
.protocol { grid-template-columns: auto 1fr; }
dt { color: #888; } dd { margin: 0; font-variant-numeric: tabular-nums; }
.failed { border-color: var(--bad); } .failed .reason { color: var(--bad); }
.good h2 b { background: var(--fine); } .doubtful h2 b { background: var(--unsure); } .failed h2 b,
.wrong h2 b { background: var(--bad); } article.doubtful { border-color: var(--unsure); }
article.wrong { border: 2px solid var(--bad); }
h2 b { color: #fff; border-radius: 4px; padding: .1rem .5rem; font-size: .8em; margin-right: .4rem; }
td.good { color: var(--fine); } td.doubtful { color: var(--unsure); } td.wrong { color: var(--bad); font-weight: bold; }
.wrong img, .wrong svg { outline: 3px solid var(--bad); opacity: .6; } .verdict { font-weight: 600; }
.note { color: #888; font-weight: normal; }
.key-ours { color: var(--ours); } .key-truth { color: var(--truth); }
polyline { fill: none; stroke-width: 1.6; } .ours { stroke: var(--ours); } .truth { stroke: var(--truth); }
circle.ours { fill: var(--ours); } code { font-size: .85em; overflow-wrap: anywhere; }
"""


def write_page(store: Store, record: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Write the page from the content of ``summary.json`` and its rows. Raises OutputError."""
    articles = [_article(store, row, number) for number, row in enumerate(rows)]
    parts = [_head(record), _overview(record, rows), *articles, _foot(record)]
    store.write(PAGE_NAME, "".join(f"{part}\n" for part in parts).encode(errors="backslashreplace"))


def _head(record: Mapping[str, Any]) -> str:
    totals = record["totals"]
    counts = f"{totals['done']} of {totals['scenes']} scenes done"
    if totals["resumed"]:
        counts += f" ({totals['resumed']} by an earlier run)"
    for name, count in (("without a result", totals["failed"]), ("not run", totals["not_run"])):
        counts += f", {count} {name}" if count else ""
    judged = [f"{count} {level}" for level, count in totals["verdicts"].items() if count]
    counts += f"; verdicts: {', '.join(judged)}" if judged else ""
    speed = f"; {totals['scenes_per_hour']:g} scenes an hour" if totals["scenes_per_hour"] else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; img-src data:; "
        "style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>stream-recon: {escape(Path(record['root']).name)}</title><style>{STYLE}</style></head><body>"
        f"<h1>{escape(record['root'])}</h1><p>{escape(counts + speed)}. "
        f"Preset {escape(record['preset']['name'])}, "
        f"weights <code>{escape(record['weights_sha256'][:16])}</code>.</p>"
        '<p class="note">Trajectories: <span class="key-ours">estimate</span>, which starts at the circle, and '
        '<span class="key-truth">ground truth</span> where it is known.</p>'
    )


def _overview(record: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """Table with a line for each scene, and the means."""
    means = record["means"]
    shown = {name: SHOWN[name] for name in SHOWN if any(row.figures.get(name) is not None for row in rows)}

    def line(first: str, frames: str, figures: Mapping[str, float | None], verdict: Verdict | None = None) -> str:
        values = [(figures.get(name), decimals) for name, (_, decimals) in shown.items()]
        cells = ["" if value is None else f"{value:.{decimals}f}" for value, decimals in values]
        judged = "<td></td>" if verdict is None else f'<td class="{CLASSES[verdict.level]}">{verdict.level}</td>'
        return f"<tr><td>{first}</td><td>{frames}</td>{judged}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"

    columns = ("scene", "frames", "verdict", *(text for text, _ in shown.values()))
    headings = "".join(f"<th>{heading}</th>" for heading in columns)
    lines = [
        line(
            f'<a href="#scene-{number}">{escape(row.name)}</a>',
            escape(str(row.result["frames"]) if row.result is not None else row.status),
            row.figures,
            row.verdict,
        )
        for number, row in enumerate(rows)
    ]
    if means:
        lines.append(line("mean", "", {name: entry["mean"] for name, entry in means.items()}))
    return f"<table><tr>{headings}</tr>{''.join(lines)}</table>"


def _foot(record: Mapping[str, Any]) -> str:
    protocol = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in record["protocol"].items())
    return (
        f'<h2>Protocol</h2><dl class="protocol">{protocol}</dl>'
        f'<p class="note">stream-recon {escape(record["version"])}, {escape(record["written"])}; weights '
        f"<code>{escape(record['weights_sha256'])}</code></p></body></html>"
    )


def _article(store: Store, row: Row, number: int) -> str:
    verdict = row.verdict
    badge = "<b>no result</b>" if row.status == "failed" else "" if verdict is None else f"<b>{verdict.level}</b>"
    title = f"<h2>{badge}{escape(row.name)} <span class='note'>{escape(row.dataset)}: {escape(row.path)}</span></h2>"
    if row.status != "done" or row.result is None:
        kind = "failed" if row.status == "failed" else "open"
        return (
            f'<article class="{kind}" id="scene-{number}">{title}'
            f'<p class="reason">{escape(row.status)}: {escape(row.reason)}</p></article>'
        )
    result = row.result
    counts = f"{result['frames']} frames, {result['keyframes']} keyframes, {result['seconds']:.1f} s"
    counts += f", {result['damaged']} damaged" if result["damaged"] else ""
    judgement = "" if verdict is None else f'<p class="verdict">{escape(verdict.explanation)}</p>'
    notes = "".join(f'<p class="note">{escape(warning)}</p>' for warning in result["warnings"])
    notes += "".join(
        f'<p class="note">{escape(describe_overlap(overlap))}</p>' for overlap in result.get("overlaps", [])
    )
    if result.get("metric") is False and row.figures:
        notes += '<p class="note">Lengths are in the unit of the ground truth, which is not metric.</p>'
    link = f'<a href="{quote(row.name)}/">{escape(counts)}</a>'
    body = _picture(store.middle_frame(row.name)) + _drawing(result["plot"]) + _figures(row.figures)
    kind = "" if verdict is None else f' class="{CLASSES[verdict.level]}"'
    text = f'{title}{judgement}<p>{link}</p><div class="row">{body}</div>{notes}'
    return f'<article{kind} id="scene-{number}">{text}</article>'


def describe_overlap(overlap: Mapping[str, Any]) -> str:
    """Alignment error of an overlap, from a split scene's record, as a line of text."""
    share = overlap["position_error_of_path"]
    of_path = f" ({100 * share:.1f} % of the path)" if share is not None else ""
    return (
        f"overlap of frames {overlap['first']} to {overlap['last']}: "
        f"position {overlap['position_error']:.4g}{of_path}, rotation {overlap['rotation_error_deg']:.3g}°, "
        f"scale {overlap['scale']:.4g} ± {100 * overlap['scale_spread']:.1f} %"
    )


def _picture(frame: bytes | None) -> str:
    """Picture from a frame's depth file, at network resolution."""
    if frame is None:
        return ""
    try:
        jpeg = read_arrays(io.BytesIO(frame), ["rgb_jpeg"])["rgb_jpeg"]
        data = base64.b64encode(jpeg.tobytes()).decode()
    except DAMAGE:
        return ""
    return f'<img alt="a frame of the scene" src="data:image/jpeg;base64,{data}">'


def _drawing(plot: Mapping[str, Any]) -> str:
    """Trajectory as SVG, above the ground truth where it is known; the circle marks the first camera."""
    ours, truth = (np.array(plot[name], np.float64).reshape(-1, 2) for name in ("estimate", "ground_truth"))
    both = np.concatenate([ours, truth])
    low, extent = both.min(axis=0), float(np.ptp(both, axis=0).max()) or 1.0
    scale = (PLOT_SIZE - 2 * PLOT_MARGIN) / extent
    centring = (extent - np.ptp(both, axis=0)) / 2

    def line(points: "np.typing.NDArray[np.float64]", name: str) -> str:
        pixels = (points - low + centring) * scale + PLOT_MARGIN
        return f'<polyline class="{name}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in pixels)}"/>'

    x, y = (ours[0] - low + centring) * scale + PLOT_MARGIN
    legend = "trajectory (red), ground truth (blue)" if len(truth) else "trajectory"
    return (
        f'<svg viewBox="0 0 {PLOT_SIZE} {PLOT_SIZE}" role="img"><title>{legend}</title>'
        f"{line(truth, 'truth') if len(truth) else ''}{line(ours, 'ours')}"
        f'<circle class="ours" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/></svg>'
    )


def _figures(figures: Mapping[str, float | None]) -> str:
    known = [(heading, figures[name], decimals) for name, (heading, decimals) in SHOWN.items() if name in figures]
    cells = [f"<dt>{heading}</dt><dd>{value:.{d}f}</dd>" for heading, value, d in known if value is not None]
    return f"<dl>{''.join(cells)}</dl>" if cells else ""
