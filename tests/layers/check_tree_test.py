#!/usr/bin/env python3
"""Each rule of check_tree.py reports its violations."""

import os
import unittest

import check_tree

CMAKE = os.path.join(os.path.dirname(__file__),
                     "../../deploy/cmake/SluiceLayers.cmake")


def third_party(path, *headers):
    text = "".join(f"#include <{h}>\n" for h in headers)
    return list(check_tree.check_third_party({path: text}))


class ThirdParty(unittest.TestCase):

    def test_each_family_is_refused_in_core_and_allowed_at_home(self):
        cases = {
            "ATen/ops/add.h": "client/torch/x.cc",
            "c10/core/Allocator.h": "client/train/x.cc",
            "gloo/transport/device.h": "client/torch/x.cc",
            "grpcpp/grpcpp.h": "daemon/service/x.cc",
            "proto/session.pb.h": "proto/wire.cc",
            "google/protobuf/message.h": "client/session/session.cc",
            "prometheus/registry.h": "daemon/metrics/x.cc",
            "CbcModel.hpp": "planner/cbc.cc",
            "coin/Clp_C_Interface.h": "planner/clp.cc",
            "zlib.h": "daemon/state/x.cc",
            "glpk.h": "tests/planner/x.cc",
            "toml++/toml.h": "daemon/config.cc",
            "CLI/CLI.hpp": "client/ctl/main.cc",
            "nlohmann/json.hpp": "proto/plan/codec.cc",
            "cuda.h": "kernels/device/cuda/x.cc",
            "spdlog/spdlog.h": "daemon/service/x.cc",
            "systemd/sd-daemon.h": "daemon/main.cc",
            "hwloc.h": "kernels/device/topology.cc",
            "gtest/gtest.h": "tests/daemon/core/x.cc",
        }
        for header, home in cases.items():
            with self.subTest(header):
                self.assertEqual(third_party(home, header), [])
                self.assertEqual(len(third_party("daemon/core/x.cc", header)),
                                 1)

    def test_only_the_backend_knows_which_attention_a_device_has(self):
        for header in (
                "ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h",
                "ATen/ops/_scaled_dot_product_flash_attention_for_cpu_"
                "backward.h",
                "ATen/ops/_flash_attention_forward.h",
                "ATen/ops/_scaled_dot_product_efficient_attention.h",
                "ATen/ops/_scaled_dot_product_cudnn_attention_backward.h",
                "kernels/ops/merge.h", "kernels/ops/gpu_kernels.h"):
            home = "client/torch/backend/backend.cc"
            self.assertEqual(third_party(home, header), [])
            [found] = third_party("client/torch/baseline/baseline.cc", header)
            self.assertIn("belongs in client/torch/backend", found)

    def test_torch_and_protobuf_in_one_file_are_reported(self):
        self.assertTrue(third_party("tests/torch/x.cc", "torch/torch.h",
                                    "proto/session.pb.h"))

    def test_protobuf_stays_out_of_torch_and_public_headers(self):
        for path in ("client/torch/x.cc", "client/train/x.cc",
                     "client/session/session.h"):
            self.assertTrue(third_party(path, "proto/session.pb.h"), path)

    def test_each_solver_is_in_one_file(self):
        for header in ("CbcModel.hpp", "coin/Clp_C_Interface.h"):
            text = f"#include <{header}>\n"
            self.assertTrue(list(check_tree.check_third_party(
                {"planner/a.cc": text, "planner/b.cc": text})), header)
        self.assertEqual(list(check_tree.check_third_party(
            {"planner/a.cc": "#include <CbcModel.hpp>\n",
             "planner/b.cc": "#include <coin/Clp_C_Interface.h>\n"})), [])

    def test_an_unknown_family_is_reported(self):
        self.assertTrue(third_party("planner/a.cc", "boost/any.hpp"))
        self.assertEqual(third_party("planner/a.cc", "vector", "sys/mman.h"),
                         [])


class Tree(unittest.TestCase):

    def setUp(self):
        with open(CMAKE, encoding="utf-8") as file:
            self.cmake = file.read()

    def layers(self, path, header):
        return list(check_tree.check_layers(
            {path: f'#include "{header}"\n'}, self.cmake))

    def test_includes_go_down_only(self):
        self.assertEqual(self.layers("daemon/core/a.cc", "proto/base/ids.h"),
                         [])
        self.assertEqual(self.layers("daemon/core/a.cc", "proto/plan/plan.h"),
                         [])
        self.assertTrue(self.layers("daemon/core/a.cc", "proto/wire.h"))
        self.assertTrue(self.layers("planner/a.cc", "daemon/core/pool.h"))
        self.assertTrue(self.layers("proto/base/a.h", "proto/plan/plan.h"))
        self.assertTrue(self.layers("client/a.cc",
                                    "client/torch/stream/shapes.h"))

    def test_the_table_covers_every_layer(self):
        uses, folders = check_tree.layer_table(self.cmake)
        self.assertEqual(set(uses), set(folders.values()))
        self.assertGreater(len(uses), 15)

    def test_a_tensor_without_a_device_is_reported(self):
        def found(text, path="client/torch/stream/x.cc"):
            return list(check_tree.check_placement({path: text}))
        for call in ("at::empty({n}, at::kByte)", "at::zeros({})",
                     "at::arange(Half(dim), at::kDouble)",
                     "at::from_blob(p, sizes)", "at::randn({2, 3})"):
            [line] = found("\nat::Tensor t = " + call + ";")
            self.assertIn("x.cc:2: at::", line)
            self.assertEqual(found(call, "tests/torch/x.cc"), [])
        for call in ("at::empty({n}, On(device, at::kByte))",
                     "at::zeros({}, runtime::OnHost(at::kDouble))",
                     "at::empty(x.sizes(),\n x.options().dtype(at::kFloat))",
                     "at::empty_like(x)", "at::zeros_like(x, at::kFloat)"):
            self.assertEqual(found(call), [])

    def test_locks_that_clang_cannot_check_are_named(self):
        for bare in ("std::mutex m;", "const std::lock_guard lock(m);",
                     "std::condition_variable_any c;", "absl::Mutex m;",
                     "absl::MutexLock lock(&m);", "std::shared_mutex m;"):
            self.assertEqual(
                len(list(check_tree.check_locks({"a.cc": bare}))), 1, bare)
            self.assertEqual(list(check_tree.check_locks(
                {"proto/base/mutex.h": bare})), [])
        for good in ("Mutex m;", "const MutexLock lock(m);", "// std::mutex"):
            self.assertEqual(list(check_tree.check_locks({"a.cc": good})), [])

    def test_fmt_print_is_found_in_product_code(self):
        line = '  fmt::print(stderr, "{}", what);\n'
        self.assertEqual(len(list(check_tree.check_prints(
            {"daemon/a.cc": line}))), 1)
        self.assertEqual(list(check_tree.check_prints(
            {"tests/a.cc": line, "daemon/a.cc": "  // fmt::print throws\n"})),
            [])

    def test_code_that_hides_our_races_is_reported(self):
        def found(path, text):
            return list(check_tree.check_races({path: text}))
        for rule in ("race:sluice::client::CopyLane::Run", "race:*",
                     "race:client/copy/", "race:grpc*", "mutex:Core",
                     "called_from_lib:libsluice.so", "deadlock:grpc::Server",
                     "race_top:sluice"):
            [line] = found(check_tree.SUPPRESSED_RACES, "# why\n" + rule)
            self.assertIn("races.supp:2: " + rule, line)
        for rule in ("# race:sluice", "", "called_from_lib:libgpr.so",
                     "called_from_lib:libgrpc++_unsecure.so",
                     "race:synchronization_internal::Waiter::Post"):
            self.assertEqual(found(check_tree.SUPPRESSED_RACES, rule), [])
        for code in ('__attribute__((no_sanitize("thread"))) void f();',
                     '[[clang::no_sanitize("address", "thread")]] int g();',
                     "__attribute__((no_sanitize_thread)) int h();",
                     "ABSL_ATTRIBUTE_NO_SANITIZE_THREAD int k();",
                     "const char* __tsan_default_suppressions();",
                     "ANNOTATE_BENIGN_RACE(&x, why);"):
            self.assertEqual(len(found("client/copy/x.cc", code)), 1, code)
        for code in ("// no_sanitize_thread",
                     '__attribute__((no_sanitize("address"))) void f();',
                     "std::thread thread;"):
            self.assertEqual(found("client/copy/x.cc", code), [])

    def test_machine_paths_and_hosts_are_named(self):
        bad = ["/" + "root/x", "/" + "home/jane/x", "http" + "://mirror.lan/a"]
        good = ["$HOME/.cache", "/run/sluice/x", "https://github.com/a/b",
                "http://127.0.0.1:9435/metrics", "frame work/of"]
        for text in bad:
            self.assertTrue(list(check_tree.check_machine({"a": text})), text)
        for text in good:
            self.assertEqual(list(check_tree.check_machine({"a": text})), [])

    def test_a_line_over_80_columns_is_named_but_not_in_a_raw_string(self):
        def found(path, text):
            return list(check_tree.check_width({path: text}))
        fits, long = "é" * 80, "é" * 81
        for path in ("a.cc", "a.h", "a.cu", "a.cuh", "a.py", "a.js", "a.sh",
                     "a.html", "a.css", "a.proto", "a.cmake",
                     "tests/CMakeLists.txt"):
            self.assertEqual(found(path, fits + "\n" + fits), [])
            self.assertEqual(found(path, fits + "\n" + long + "\n"),
                             [f"{path}:2: 81 columns, over 80"])
        raw = f'f(R"x(\n{long})"\n{long})x");\n'
        self.assertEqual(found("a.cc", raw), [])
        self.assertEqual(found("a.cc", raw + long),
                         ["a.cc:4: 81 columns, over 80"])
        self.assertEqual(len(found("a.py", raw)), 2)
        for path in ("README.md", "tests/fake_cuda/rules.h"):
            self.assertEqual(found(path, long), [])

    def test_top_level_is_exactly_what_belongs_there(self):
        right = [f"{f}/README.md" for f in check_tree.TOP_LEVEL]
        right += check_tree.TOP_FILES + [".clang-format", ".ci/config"]
        self.assertEqual(list(check_tree.check_top_level(right)), [])
        for more in ("NOTES.md", "scripts/run.sh"):
            self.assertEqual(
                list(check_tree.check_top_level(right + [more])),
                [more.split("/")[0] + " does not belong at the top level"])
        for name in ("LICENSE", "planner/README.md"):
            self.assertEqual(
                list(check_tree.check_top_level(
                    [p for p in right if p != name])),
                [name.split("/")[0] + " is missing at the top level"])

    def test_a_folder_without_design_page_is_named(self):
        paths = {f"{f}/README.md" for f in check_tree.TOP_LEVEL}
        self.assertEqual(
            list(check_tree.check_readmes(paths, {"daemon/core": "core"})), [])
        self.assertTrue(list(check_tree.check_readmes(
            paths | {"daemon/core/a.cc"}, {"daemon/core": "core"})))


if __name__ == "__main__":
    unittest.main()
