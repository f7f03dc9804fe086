"""The public names of `holdfast.pipeline`: there, loaded when used, and hidden by no module."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from types import ModuleType

from holdfast import pipeline

HEAVY = ("pyspark", "pyarrow", "pandas", "deltalake", "numpy")


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_P10_every_public_name_is_there_and_no_module_takes_its_place() -> None:
    modules = {found.name for found in pkgutil.iter_modules(pipeline.__path__)}
    assert not modules & set(pipeline.__all__)
    assert sorted(pipeline.__all__) == sorted(pipeline._WHERE) == sorted(dir(pipeline))
    for name in pipeline.__all__:
        assert not isinstance(getattr(pipeline, name), ModuleType), name


def test_P10_importing_the_pipeline_loads_no_spark() -> None:
    code = f"import sys, holdfast.pipeline; print(sorted(sys.modules.keys() & set({HEAVY!r})))"
    assert run(code) == "[]"


def test_P10_a_public_name_without_its_packages_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from holdfast import pipeline\n"
        "from holdfast.rules.errors import NoSpark\n"
        "for name in pipeline.__all__:\n"
        "    try:\n"
        "        getattr(pipeline, name)\n"
        "    except NoSpark as error:\n"
        "        assert 'holdfast[spark]' in error.hint, error.hint\n"
        "        print(name)\n"
    )
    assert "Lake" in run(code).split()
