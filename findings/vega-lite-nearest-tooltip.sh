#!/bin/sh
# Vega-Lite 6.4 (in vl-convert-python 1.9.0) writes a tooltip of texts for the nearest point that reads the field of the
# Voronoi cell, where there is none: it shows "undefined". Numbers beside it are read from the point, and 6.1 reads both
# from it, so one would expect the newest version to do the same. Seen on 2026-11-28:
#   6.1: isValid(datum.datum["a"]) ? datum.datum["a"] : ""+datum.datum["a"]
#   6.4: isValid(datum["a"]) ? isArray(datum["a"]) ? join(datum["a"], '\n') : datum["a"] : ""+datum["a"]
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check vl-convert-python==1.9.0.post1
"$folder/venv/bin/python" - <<'PYTHON'
import sys
import vl_convert

print("vl-convert", vl_convert.__version__)
near = {"name": "near", "select": {"type": "point", "on": "pointerover", "nearest": True}}
encoding = {"x": {"field": "b", "type": "quantitative"}, "tooltip": {"field": "a", "type": "nominal"}}
chart = {"data": {"values": [{"a": "x", "b": 1}]}, "params": [near], "mark": "circle", "encoding": encoding}
reads = {}
for version in ("6.1", "6.4"):
    marks = vl_convert.vegalite_to_vega(chart, vl_version=version)["marks"]
    (cells,) = [mark for mark in marks if "voronoi" in mark["name"]]
    shown = cells["encode"]["update"]["tooltip"]["signal"]
    print(f"{version}: {shown}")
    reads[version] = 'datum.datum["a"]' in shown
sys.exit(reads != {"6.1": True, "6.4": False})
PYTHON
