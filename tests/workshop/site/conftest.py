import json
import shutil
import subprocess

import pytest

from rlbook.paths import ROOT

PROGRAM = """
import {{ readFileSync }} from "node:fs";
import {{ {names} }} from "{module}";
const job = JSON.parse(readFileSync(0));
console.log(JSON.stringify({call}));
"""


@pytest.fixture(scope="session")
def node():
    """`node(file, names, expression, **job)`: what JavaScript of the site makes of `job`."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")

    def run(file, names, call, **job):
        module = (ROOT / "workshop/site/static" / file).as_uri()
        program = PROGRAM.format(names=names, module=module, call=call)
        done = subprocess.run(
            ["node", "--input-type=module", "-e", program],
            input=json.dumps(job),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run
