// The safetensors writer, and the dump that is kept as test data.
#include "tools/longdecode/safetensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <numeric>

#include "tests/support/safetensors.h"

namespace longdecode::tool {
namespace {

namespace fs = std::filesystem;

class SafetensorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              ("safetensors_test_" +
               std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    fs::remove_all(folder_);
    fs::create_directory(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  int64_t num_files() const {
    return std::distance(fs::directory_iterator(folder_), fs::directory_iterator());
  }
  std::string path() const { return (folder_ / "x.safetensors").string(); }

  fs::path folder_;
};

TEST_F(SafetensorsTest, PiecesInAnyOrderReadBack) {
  std::vector<float> floats(24);
  std::iota(floats.begin(), floats.end(), -3.5f);
  const std::vector<uint16_t> halves = {f32_to_f16(1.5f), f32_to_f16(-65504.0f), 0};
  auto writer = SafetensorsWriter::create(
      path(), {{"a", DType::kF32, {2, 3, 4}}, {"b\"\n", DType::kF16, {3}}}, {{"model", "m"}});
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  EXPECT_TRUE(writer->write(1, 0, halves.data(), 6).ok());
  EXPECT_TRUE(writer->write(0, 48, floats.data() + 12, 48).ok());
  EXPECT_TRUE(writer->write(0, 0, floats.data(), 48).ok());
  EXPECT_FALSE(fs::exists(path()));
  ASSERT_TRUE(writer->commit().ok());
  EXPECT_EQ(num_files(), 1);
  const auto tensors = tests::load_safetensors(path());
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors.at("a").shape, (std::vector<int64_t>{2, 3, 4}));
  EXPECT_EQ(tensors.at("a").values, floats);
  EXPECT_EQ(tensors.at("b\"\n").values, (std::vector<float>{1.5f, -65504.0f, 0.0f}));
}

TEST_F(SafetensorsTest, NothingIsLeftWithoutACommit) {
  {
    auto writer = SafetensorsWriter::create(path(), {{"a", DType::kF32, {2}}}, {});
    ASSERT_TRUE(writer.ok());
    const float value = 1.0f;
    EXPECT_TRUE(writer->write(0, 0, &value, 4).ok());
  }
  EXPECT_EQ(num_files(), 0);
}

TEST_F(SafetensorsTest, ALinkToNothingYetIsFollowed) {
  const fs::path link = folder_ / "link";
  fs::create_symlink("x.safetensors", link);
  auto writer = SafetensorsWriter::create(link.string(), {{"a", DType::kF32, {2}}}, {});
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  EXPECT_FALSE(fs::exists(path()));
  ASSERT_TRUE(writer->commit().ok());
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(path())));
  EXPECT_EQ(num_files(), 2);
}

TEST_F(SafetensorsTest, PathsThatCannotBeWrittenAreRefused) {
  for (const std::string& bad :
       {folder_.string(), (folder_ / "none" / "x").string(), std::string("/dev/full")}) {
    const auto writer = SafetensorsWriter::create(bad, {{"a", DType::kF32, {2}}}, {});
    ASSERT_FALSE(writer.ok());
    EXPECT_EQ(writer.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(writer.status().message().find(bad), std::string::npos);
  }
  EXPECT_EQ(num_files(), 0);
}

// Written by: longdecode dump-qkv -m models/SmolLM2-135M-Instruct.Q4_1.gguf -f LICENSE -c 1024
//   --layers 0,17 --dtype f16 -o tests/data/smollm2_qkv.safetensors
TEST(QkvDump, OfARealModelIsThere) {
  const auto tensors = tests::load_safetensors("tests/data/smollm2_qkv.safetensors");
  ASSERT_EQ(tensors.size(), 6u);
  for (const char* layer : {"layers.0", "layers.17"}) {
    EXPECT_EQ(tensors.at(std::string(layer) + ".q").shape, (std::vector<int64_t>{1024, 9, 64}));
    for (const char* name : {".k", ".v"}) {
      const auto& tensor = tensors.at(std::string(layer) + name);
      EXPECT_EQ(tensor.shape, (std::vector<int64_t>{1024, 3, 64}));
      double sum = 0.0;
      for (const float value : tensor.values) sum += std::abs(value);
      EXPECT_TRUE(std::isfinite(sum));
      EXPECT_GT(sum / static_cast<double>(tensor.values.size()), 0.01);
    }
  }
}

}  // namespace
}  // namespace longdecode::tool
