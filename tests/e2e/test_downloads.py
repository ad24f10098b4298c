"""A script in a real container reads what was fetched from a real server on loopback."""

import os
from pathlib import Path

import yaml

from orchestrator.storage.assets import AssetStore
from orchestrator.storage.pack import load_pack
from tests.e2e.rig import Rig
from tests.unit.site_help import Published, sha256, site

ROWS = b"one\ntwo\nthree\n"
SCRIPT = """\
import os, socket, sys
from pathlib import Path

file = Path("/opt/downloads/raw/deep/rows.txt")
try:
    file.with_name("more").write_text("x")
    sys.exit("what was fetched can be written to")
except OSError:
    pass
if set(os.listdir("/sys/class/net")) - {"lo"}:
    sys.exit("there is a network")
for name in ("models/start", "data/train", "data/final"):
    folder = Path(sys.argv[1]) / name
    folder.mkdir(parents=True)
    (folder / "weights.txt").write_text(f"{name} {len(file.read_text().split())}")
"""


def test_a_script_turns_what_was_fetched_into_assets(rig: Rig) -> None:
    place = rig.pack()
    task = yaml.safe_load((place / "task.yaml").read_text())
    for asset in task["assets"].values():
        del asset["digest"]
        asset["source"] = {"prepare": "prepare.py", "from": ["raw"]}
    (place / "prepare.py").write_text(SCRIPT)
    task["prepare"] = {"image": "cpu-numpy"}
    before = os.umask(0o077)  # whoever has such a mask: the container's user must read all the same
    try:
        with site() as server:
            server.files["rows.txt"] = Published(ROWS, cut=[5, None])
            file = {"url": server.url("rows.txt"), "sha256": sha256(ROWS)}
            task["downloads"] = {"raw": {"urls": {"deep/rows.txt": file}}}
            (place / "task.yaml").write_text(yaml.safe_dump(task, sort_keys=False))
            done = rig.call("task", "prepare", place)
            assert done.code == 0, done.err
            assert server.ranges() == [None, "bytes=5-"]
    finally:
        os.umask(before)
    pack = load_pack(place)
    for name in pack.spec.assets:
        folder = AssetStore(Path(rig.variables["ORCH_ASSETS"])).locate(pack, name)
        assert (folder / "weights.txt").read_text() == f"{name} 3"
    again = rig.call("task", "prepare", "--update", place)  # the server is gone by now
    assert again.code == 0, again.err
