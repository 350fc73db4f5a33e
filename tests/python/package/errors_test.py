"""Tests the package's exceptions, and that its constants and structs equal
those of the C header."""

from __future__ import annotations

import ctypes
import pickle
import re

import pytest
from support import ROOT, run

import sluice
from sluice.base.errors import Status
from sluice.native import abi
from sluice.native.daemon import find_programs

HEADER = (ROOT / "client" / "sluice.h").read_text()
# C type in the header -> ctypes type.
C_TYPES = {
    "size_t": ctypes.c_size_t, "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32, "uint64_t": ctypes.c_uint64,
    "double": ctypes.c_double, "const char*": ctypes.c_char_p,
}


def without_comments(text):
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


def test_an_error_has_its_line_and_its_status():
    error = sluice.Error(8, "host: asked 2 GiB, free 1 GiB; free a lease")
    assert error.status is Status.RESOURCE_EXHAUSTED
    assert str(error) == ("host: asked 2 GiB, free 1 GiB; free a lease "
                          "(RESOURCE_EXHAUSTED)")
    assert isinstance(error, RuntimeError)


def test_an_unknown_status_of_a_newer_library_maps_to_unknown():
    assert sluice.Error(99, "x").status is Status.UNKNOWN


def test_unsupported_says_module_feature_and_remedy():
    error = sluice.Unsupported("model.layers.3.mlp", "is sharded by itself",
                               "shard the whole layer")
    assert str(error) == ("model.layers.3.mlp: is sharded by itself: "
                          "shard the whole layer")
    assert error.remedy == "shard the whole layer"


@pytest.mark.parametrize("error", [
    sluice.Error(14, "the daemon is gone"),
    sluice.Unsupported("m", "f", "r")])
def test_errors_can_be_pickled(error):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))


def test_tracebacks_name_the_errors_as_users_import_them():
    ran = run("import sluice; raise sluice.Error(14, 'it is gone')")
    assert ran.stderr.splitlines()[-1] == (
        "sluice.Error: it is gone (UNAVAILABLE)")


def test_statuses_are_those_of_the_header():
    told = dict(re.findall(r"\bSLUICE_([A-Z_]+) = (\d+)",
                           HEADER[:HEADER.index("} sluice_status;")]))
    del told["OK"]
    assert {s.name: str(s.value) for s in Status} == told


@pytest.mark.parametrize("ours, theirs", [
    (abi.SessionOptions, "sluice_session_options"),
    (abi.Limits, "sluice_limits"),
    (abi.StepReport, "sluice_step_report"),
    (abi.CopyStats, "sluice_copy_stats")])
def test_structs_are_those_of_the_header(ours, theirs):
    body = re.search(rf"typedef struct {theirs} {{(.*?)}} {theirs};",
                     without_comments(HEADER), re.S).group(1)
    fields = [tuple(field.split()[::-1]) if "const" not in field else
              (field.split()[-1], "const char*")
              for field in body.split(";") if field.strip()]
    assert ([("size", ctypes.c_size_t), *ours._fields_] ==
            [(name, C_TYPES[kind]) for name, kind in fields])


def test_signatures_have_as_many_arguments_as_in_the_header():
    declared = {}
    for name, arguments in re.findall(
            r"SLUICE_API [\w\s*]*?\b(sluice_\w+)\(([^;]*)\);",
            without_comments(HEADER)):
        declared[name] = 0 if arguments == "void" else len(
            arguments.split(","))
    for table in (abi._SIGNATURES, abi._BRIEF_SIGNATURES):
        for name, (_, arguments) in table.items():
            assert len(arguments) == declared[name], name


def test_an_older_library_is_refused_with_a_remedy(monkeypatch):
    abi._check_version("libsluice.so", abi.ABI_VERSION)
    abi._check_version("libsluice.so", abi.ABI_VERSION + 1)
    path, now = find_programs().library, abi.ABI_VERSION
    monkeypatch.setattr(abi, "ABI_VERSION", now + 1)
    wanted = f"{path} has C ABI {now}, .* needs {now + 1}:"
    with pytest.raises(sluice.Error, match=wanted) as found:
        abi.Library(path)
    assert found.value.status == Status.FAILED_PRECONDITION


def test_the_abi_version_is_that_of_the_header():
    assert f"#define SLUICE_ABI_VERSION {abi.ABI_VERSION}\n" in HEADER
