// Shapes files of `longdecode bench attention`.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tools/longdecode/bench_attention.h"

namespace longdecode::tool {
namespace {

Result<std::vector<ShapeRequest>> read_text(const std::string& text) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("longdecode_shapes_" + std::to_string(getpid()) + ".json");
  std::ofstream(path) << text;
  auto requests = read_shapes_file(path.string(), {});
  std::filesystem::remove(path);
  return requests;
}

TEST(HarnessShapes, ListsAndSingleValuesAndDefaults) {
  const auto requests = read_text(
      R"([{"op": "mla", "method": "dense", "kv_len": [1024, 2048], "batch": 3, "certified": true,
           "delta": 2.5, "seed": 7}, {}])");
  ASSERT_TRUE(requests.ok()) << requests.status().message();
  ASSERT_EQ(requests->size(), 2u);
  std::vector<bench::ShapeSpec> shapes;
  ASSERT_TRUE(expand((*requests)[0], shapes).ok());
  ASSERT_EQ(shapes.size(), 2u);
  EXPECT_EQ(shapes[1].op, Op::kMla);
  EXPECT_EQ(shapes[1].kv_len, 2048);
  EXPECT_EQ(shapes[1].batch, 3);
  EXPECT_EQ(shapes[1].ffd.delta, 2.5f);
  EXPECT_TRUE(shapes[1].ffd.certified);
  EXPECT_EQ(shapes[1].seed, 7u);
  EXPECT_EQ((*requests)[1].head_dim, ShapeRequest().head_dim);
}

TEST(HarnessShapes, BadFilesAreRefusedWithTheReason) {
  struct Case {
    const char* text;
    const char* reason;
  };
  for (const Case& c :
       {Case{"", "is not JSON"}, Case{"[{]", "is not JSON"}, Case{"{}", "is not an array"},
        Case{"[]", "is not an array"}, Case{"[3]", "is not an object"},
        Case{R"([{}, {"kvlen": 1}])", "shape 1: \"kvlen\" is no option"},
        Case{R"([{"batch": "1"}])", "\"batch\" is \"1\""},
        Case{R"([{"batch": 1.5}])", "\"batch\" is 1.5"},
        Case{R"([{"batch": 4294967297}])", "\"batch\" is 4294967297"},
        Case{R"([{"batch": -4294967297}])", "\"batch\" is -4294967297"},
        Case{R"([{"kv_len": 18446744073709551615}])", "\"kv_len\" is"},
        Case{R"([{"batch": []}])", "\"batch\" is []"}, Case{R"([{"op": 3}])", "\"op\" is 3"},
        Case{R"([{"certified": 1}])", "\"certified\" is 1"},
        Case{R"([{"kept": [0.1, "x"]}])", "\"kept\" is"}}) {
    const auto requests = read_text(c.text);
    ASSERT_FALSE(requests.ok()) << c.text;
    EXPECT_NE(requests.status().message().find(c.reason), std::string::npos)
        << c.text << ": " << requests.status().message();
  }
  EXPECT_FALSE(read_shapes_file("no/such/file.json", {}).ok());
  EXPECT_FALSE(read_shapes_file(".", {}).ok());
}

TEST(HarnessShapes, UnknownNamesAreRefused) {
  const auto refused = [](auto change) {
    ShapeRequest request;
    change(request);
    std::vector<bench::ShapeSpec> shapes;
    return expand(request, shapes).code() == StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](ShapeRequest& r) { r.op = "mha"; }));
  EXPECT_TRUE(refused([](ShapeRequest& r) { r.method = {"dense", "quest"}; }));
  EXPECT_TRUE(refused([](ShapeRequest& r) { r.dtype = "fp8"; }));
  EXPECT_TRUE(refused([](ShapeRequest& r) { r.workload = "random"; }));
  EXPECT_TRUE(refused([](ShapeRequest& r) { r.seed = -1; }));
}

TEST(HarnessShapes, FfdIsLeftOutForMlaBesideDense) {
  ShapeRequest request;
  request.op = "mla";
  std::vector<bench::ShapeSpec> shapes;
  ASSERT_TRUE(expand(request, shapes).ok());
  EXPECT_EQ(shapes[0].methods, std::vector<Method>{Method::kDense});
}

// Run from the source directory, as longdecode_test() does.
TEST(HarnessShapes, TheShapesOfTheRepositoryAreGood) {
  int64_t num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator("benchmarks/shapes")) {
    const auto requests = read_shapes_file(entry.path().string(), {});
    ASSERT_TRUE(requests.ok()) << requests.status().message();
    std::vector<bench::ShapeSpec> shapes;
    for (const ShapeRequest& request : *requests) ASSERT_TRUE(expand(request, shapes).ok());
    ++num_files;
  }
  EXPECT_GE(num_files, 2);
}

TEST(HarnessShapes, DumpsGiveHeadsAndBadOnesAreRefusedWithTheReason) {
  ShapeRequest request;
  request.workload = "dump";
  std::vector<bench::ShapeSpec> shapes;
  EXPECT_EQ(expand(request, shapes).code(), StatusCode::kInvalidArgument);  // no file
  request.dump = "tests/data/smollm2_qkv.safetensors";
  request.layer = 17;
  ASSERT_TRUE(expand(request, shapes).ok());
  EXPECT_EQ(shapes[0].num_q_heads, 9);
  EXPECT_EQ(shapes[0].num_kv_heads, 3);
  EXPECT_EQ(shapes[0].head_dim, 64);
  EXPECT_EQ(shapes[0].sample->num_tokens, 1024);
  EXPECT_EQ(shapes[0].sample->layer_idx, 17);
  EXPECT_NE(shapes[0].sample->k[1000], 0.0f);
  request.layer = 3;
  EXPECT_EQ(expand(request, shapes).code(), StatusCode::kNotFound);
  request.op = "mla";
  EXPECT_FALSE(expand(request, shapes).ok());

  const auto path = std::filesystem::temp_directory_path() /
                    ("longdecode_dump_" + std::to_string(getpid()) + ".safetensors");
  const auto file = [](const std::string& header, size_t num_data) {
    std::string text(8, '\0');
    text[0] = static_cast<char>(header.size() & 255);
    text[1] = static_cast<char>(header.size() >> 8);
    return text + header + std::string(num_data, '\1');
  };
  const auto tensor = [](const std::string& shape, const std::string& offsets) {
    const std::string entry =
        R"({"dtype": "F16", "shape": )" + shape + R"(, "data_offsets": )" + offsets + "}";
    return R"({"layers.0.q": )" + entry + R"(, "layers.0.k": )" + entry + R"(, "layers.0.v": )" +
           entry + "}";
  };
  const auto read = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
    return read_dump(path.string(), 0).ok();
  };
  EXPECT_TRUE(read(file(tensor("[1, 1, 4]", "[0, 8]"), 8)));
  const std::string bad[] = {"",
                             "1234567",
                             std::string(8, '\xff'),
                             file("[]", 0),
                             file("{", 0),
                             file(tensor("[1, 1, 4]", "[0, 8]"), 7),
                             file(tensor("[1, 1, 4]", "[8, 0]"), 8),
                             file(tensor("[1, 1, 4]", "[1, 9]"), 8),
                             file(tensor("[1, 1, -4]", "[0, 8]"), 8),
                             file(tensor("[1, 4]", "[0, 8]"), 8),
                             file(tensor("[1048576, 1048576, 1048577]", "[0, 8]"), 8),
                             file(tensor("[1, 1, 4]", "[0, 18446744073709551615]"), 8),
                             file(tensor("\"a\"", "[0, 8]"), 8)};
  for (const std::string& bytes : bad) EXPECT_FALSE(read(bytes)) << bytes;
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace longdecode::tool
