"""The table of formats: its exporters are there, and what has no effect is said."""

from dataclasses import fields
from importlib import import_module
from pathlib import Path

from stream_recon.app.export.formats import FORMATS, Format, concerned, export
from stream_recon.app.export.job import ExportOptions
from tests.app.export.rooms import write_room


def test_each_exporter_is_there() -> None:
    for form in FORMATS.values():
        module, function = form.writer.split(".")
        assert callable(getattr(import_module(f"stream_recon.app.export.{module}"), function))


def test_options_are_those_of_exports() -> None:
    names = {field.name for field in fields(ExportOptions)}
    assert {option for form in FORMATS.values() for option in form.options.split()} == names
    assert concerned("faces") == "mesh"


def test_an_option_without_effect_is_named(tmp_path: Path) -> None:
    write_room(tmp_path / "out", 3, source=False)
    _, report = export(tmp_path / "out", "trajectory", options=ExportOptions(faces=100, max_side=64))
    assert report.warnings == [
        "--max-side has no effect on --format trajectory",
        "--faces has no effect on --format trajectory",
    ]
    assert not export(tmp_path / "out", "glb", options=ExportOptions(points=100))[1].warnings


def test_labels_name_the_kind_of_file() -> None:
    form = Format("x", "Sheet", "x.write", "", (".csv", ".ods"))
    assert [form.label(suffix) for suffix in form.offered] == ["Sheet (CSV)", "Sheet (ODS)"]
    assert Format("y", "Sheet", "y.write", "").label("") == "Sheet (ZIP)"
