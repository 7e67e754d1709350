// GGUF reader: what a good file gives, and that a bad one always ends in a Status.
#include "runner/gguf/gguf_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <random>

#include "tests/support/gguf_writer.h"

namespace longdecode::runner {
namespace {

using tests::ByteWriter;
using tests::GgufWriter;
using Type = GgufType;

GgufWriter sample() {
  GgufWriter writer;
  writer.add_string("general.architecture", "llama")
      .add_scalar("u8", Type::kUint8, uint8_t{200})
      .add_scalar("i8", Type::kInt8, int8_t{-100})
      .add_scalar("u16", Type::kUint16, uint16_t{60000})
      .add_scalar("i16", Type::kInt16, int16_t{-30000})
      .add_u32("u32", 4000000000u)
      .add_scalar("i32", Type::kInt32, int32_t{-2000000000})
      .add_f32("f32", 1.5f)
      .add_scalar("yes", Type::kBool, uint8_t{1})
      .add_scalar("u64", Type::kUint64, std::numeric_limits<uint64_t>::max())
      .add_scalar("i64", Type::kInt64, std::numeric_limits<int64_t>::min())
      .add_scalar("f64", Type::kFloat64, 2.25)
      .add_f32("nan", std::numeric_limits<float>::quiet_NaN())
      .add_strings("words", {"a", "", "longer \xe2\x82\xac"})
      .add_array("ids", Type::kInt32, std::vector<int32_t>{3, -1, 7})
      .add_array("weights", Type::kFloat32, std::vector<float>{0.5f, -2.0f})
      .add_array("none", Type::kUint64, std::vector<uint64_t>{});
  ByteWriter nested;  // [[1, 2], [3]] of uint8
  nested.put(Type::kArray).put(uint64_t{2});
  nested.put(Type::kUint8).put(uint64_t{2}).put(uint8_t{1}).put(uint8_t{2});
  nested.put(Type::kUint8).put(uint64_t{1}).put(uint8_t{3});
  writer.add_raw("nested", 9, nested.bytes());
  writer.add_tensor("norm", 0, {5}, std::vector<uint8_t>(20, 1));
  writer.add_tensor("blk.0.w", 3, {64, 3}, std::vector<uint8_t>(120, 2));
  writer.add_tensor("other", 12, {256, 2}, std::vector<uint8_t>(288, 3));  // Q4_K
  return writer;
}

Result<GgufFile> read(const std::vector<uint8_t>& bytes) {
  return GgufFile::from_bytes(bytes, "sample");
}

// Uses everything that a reader may use, so that sanitizers see any bad view.
int64_t touch(const GgufFile& file) {
  int64_t sum = 0;
  for (const std::string_view key : file.keys()) {
    const GgufValue* value = file.find(key);
    for (const uint8_t byte : value->bytes) sum += byte;
    if (const auto texts = file.get_strings(key); texts.ok()) {
      for (const std::string_view text : *texts) {
        for (const char c : text) sum += c;
      }
    }
    if (const auto text = file.get_string(key); text.ok()) sum += int64_t(text->size());
    sum += file.get_int(key, -100, 100).ok() + file.get_float(key).ok() + file.get_bool(key).ok();
    sum += file.get_ints(key).ok() + file.get_floats(key).ok();
  }
  for (const GgufTensor& tensor : file.tensors()) {
    for (const uint8_t byte : tensor.bytes) sum += byte;
    sum += tensor.num_elements() + file.find_tensor(tensor.name)->rank;
  }
  return sum;
}

TEST(GgufFile, ReadsEveryValueType) {
  for (const uint32_t version : {2u, 3u}) {
    const auto file = read(sample().set_version(version).finish());
    ASSERT_TRUE(file.ok()) << file.status().message();
    constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
    constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
    EXPECT_EQ(*file->get_int("u8", kMin, kMax), 200);
    EXPECT_EQ(*file->get_int("i8", kMin, kMax), -100);
    EXPECT_EQ(*file->get_int("u16", kMin, kMax), 60000);
    EXPECT_EQ(*file->get_int("i16", kMin, kMax), -30000);
    EXPECT_EQ(*file->get_int("u32", kMin, kMax), 4000000000);
    EXPECT_EQ(*file->get_int("i32", kMin, kMax), -2000000000);
    EXPECT_EQ(*file->get_int("i64", kMin, kMax), kMin);
    EXPECT_FALSE(file->get_int("u64", kMin, kMax - 1).ok());
    EXPECT_EQ(*file->get_float("f32"), 1.5);
    EXPECT_EQ(*file->get_float("f64"), 2.25);
    EXPECT_TRUE(*file->get_bool("yes"));
    EXPECT_EQ(*file->get_string("general.architecture"), "llama");
    EXPECT_EQ(*file->get_strings("words"),
              (std::vector<std::string_view>{"a", "", "longer \xe2\x82\xac"}));
    EXPECT_EQ(*file->get_ints("ids"), (std::vector<int64_t>{3, -1, 7}));
    EXPECT_EQ(*file->get_floats("weights"), (std::vector<float>{0.5f, -2.0f}));
    EXPECT_TRUE(file->get_ints("none")->empty());
    EXPECT_EQ(file->find("nested")->count, 2u);
    EXPECT_EQ(file->find("nested")->element_type, Type::kArray);
    EXPECT_EQ(file->version(), version);
    EXPECT_EQ(file->keys().front(), "general.architecture");
  }
}

TEST(GgufFile, ReadsTensors) {
  const auto file = read(sample().finish());
  ASSERT_TRUE(file.ok());
  ASSERT_EQ(file->tensors().size(), 3u);
  const GgufTensor* weight = file->find_tensor("blk.0.w");
  ASSERT_NE(weight, nullptr);
  EXPECT_TRUE(weight->is(GgmlType::kQ4_1));
  EXPECT_EQ(weight->shape_string(), "[64, 3]");
  EXPECT_EQ(weight->bytes.size(), 120u);
  EXPECT_EQ(weight->bytes[0], 2);
  EXPECT_STREQ(file->find_tensor("other")->type_name(), "Q4_K");
  EXPECT_EQ(file->find_tensor("absent"), nullptr);
}

TEST(GgufFile, GettersSayWhatIsWrong) {
  const auto file = read(sample().finish());
  ASSERT_TRUE(file.ok());
  const auto expect = [](const Status& status, StatusCode code, const std::string& part) {
    EXPECT_EQ(status.code(), code);
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  };
  expect(file->get_int("absent", 0, 1).status(), StatusCode::kNotFound, "no key 'absent'");
  expect(file->get_int("u8", 1, 100).status(), StatusCode::kInvalidArgument,
         "key 'u8' is 200; 1 to 100 is allowed");
  expect(file->get_int("f32", 0, 9).status(), StatusCode::kInvalidArgument, "has type float32");
  expect(file->get_float("nan").status(), StatusCode::kInvalidArgument, "finite");
  expect(file->get_bool("u8").status(), StatusCode::kInvalidArgument, "bool is needed");
  expect(file->get_string("ids").status(), StatusCode::kInvalidArgument, "array of int32");
  expect(file->get_strings("ids").status(), StatusCode::kInvalidArgument, "array of strings");
  expect(file->get_ints("nested").status(), StatusCode::kInvalidArgument, "array of array");
  expect(file->get_ints("weights").status(), StatusCode::kInvalidArgument, "integers");
  expect(file->get_floats("f32").status(), StatusCode::kInvalidArgument, "array of floats");
  EXPECT_EQ(*file->get_int_or("absent", 0, 1, 9), 9);
  EXPECT_EQ(file->get_int_or("f32", 0, 1, 9).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(*file->get_float_or("absent", 0.5), 0.5);
  EXPECT_EQ(*file->get_bool_or("absent", true), true);
  EXPECT_EQ(*file->get_string_or("absent", "x"), "x");
}

TEST(GgufFile, EveryTruncationIsRefused) {
  const std::vector<uint8_t> bytes = sample().finish();
  for (size_t length = 0; length < bytes.size(); ++length) {
    const auto file = read({bytes.begin(), bytes.begin() + std::ptrdiff_t(length)});
    ASSERT_FALSE(file.ok()) << "length " << length;
    EXPECT_FALSE(file.status().message().empty());
  }
}

TEST(GgufFile, MutationsEndInAStatusOrAReadableFile) {
  const std::vector<uint8_t> bytes = sample().finish();
  int64_t sum = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {  // every byte, set to the values that hurt most
    for (const uint8_t value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      std::vector<uint8_t> mutant = bytes;
      mutant[i] = value;
      if (const auto file = read(mutant); file.ok()) sum += touch(*file);
    }
  }
  std::mt19937 random(7);
  for (int round = 0; round < 1000; ++round) {
    std::vector<uint8_t> mutant = bytes;
    const int count = 1 + int(random() % 8);
    for (int k = 0; k < count; ++k) mutant[random() % mutant.size()] = uint8_t(random());
    if (random() % 4 == 0) mutant.resize(random() % mutant.size());
    if (const auto file = read(mutant); file.ok()) sum += touch(*file);
  }
  EXPECT_NE(sum, 0);
}

struct BadFile {
  const char* name;
  std::vector<uint8_t> bytes;
  StatusCode code;
  const char* part;  // of the message
};

std::vector<BadFile> bad_headers() {
  constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();
  const StatusCode loss = StatusCode::kDataLoss;
  ByteWriter huge_array;
  huge_array.put(Type::kUint64).put(uint64_t{1} << 61);  // * 8 overflows to 8
  ByteWriter huge_strings;
  huge_strings.put(Type::kString).put(kHuge);
  ByteWriter deep;
  for (int i = 0; i < 100; ++i) deep.put(Type::kArray).put(uint64_t{1});
  ByteWriter huge_text;
  huge_text.put(kHuge);
  return {
      {"empty", {}, loss, "does not start with 'GGUF'"},
      {"other format", std::vector<uint8_t>(100, 'P'), loss, "does not start with 'GGUF'"},
      {"version 1", sample().set_version(1).finish(), StatusCode::kUnsupported, "version is 1"},
      {"version 4", sample().set_version(4).finish(), StatusCode::kUnsupported, "version is 4"},
      {"big-endian", sample().set_version(0x03000000).finish(), StatusCode::kUnsupported,
       "big-endian"},
      {"tensors", sample().set_counts(kHuge, 1).finish(), loss, "tensor count"},
      {"values", sample().set_counts(1, kHuge / 13).finish(), loss, "metadata count"},
      {"array bytes overflow", GgufWriter().add_raw("k", 9, huge_array.bytes()).finish(), loss,
       "values of 'k'"},
      {"array count", GgufWriter().add_raw("k", 9, huge_strings.bytes()).finish(), loss,
       "elements of 'k'"},
      {"nested arrays", GgufWriter().add_raw("k", 9, deep.bytes()).finish(), loss, "nested"},
      {"string length", GgufWriter().add_raw("k", 8, huge_text.bytes()).finish(), loss,
       "string of 'k'"},
      {"value type", GgufWriter().add_raw("k", 13, {1, 2, 3, 4}).finish(), loss, "has type 13"},
      {"array type",
       GgufWriter().add_array("k", static_cast<Type>(77), std::vector<int>{1}).finish(), loss,
       "has type 77"},
      {"bool", GgufWriter().add_raw("k", 7, {2}).finish(), loss, "bool of 'k' is 2"},
      {"duplicate key", GgufWriter().add_u32("k", 1).add_u32("k", 2).finish(), loss,
       "key 'k' appears twice"},
      {"empty key", GgufWriter().add_u32("", 1).finish(), loss, "has 0 bytes"},
      {"line break in a key", GgufWriter().add_raw("a\nb", 99, {0, 0}).finish(), loss, "a\\x0ab"},
      {"alignment 0", GgufWriter().add_u32("general.alignment", 0).finish(), loss,
       "general.alignment is 0"},
      {"alignment 24", GgufWriter().add_u32("general.alignment", 24).finish(), loss,
       "general.alignment is 24"},
      {"alignment type", GgufWriter().add_f32("general.alignment", 32).finish(), loss,
       "general.alignment has type float32"},
  };
}

std::vector<BadFile> bad_tensors() {
  constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();
  const StatusCode loss = StatusCode::kDataLoss;
  const std::vector<uint8_t> data(64);
  const auto one = [&](uint32_t type, std::vector<uint64_t> shape) {
    return GgufWriter().add_tensor("t", type, std::move(shape), data);
  };
  return {
      {"duplicate", one(0, {4}).add_tensor("t", 0, {4}, data).finish(), loss,
       "tensor 't' appears twice"},
      {"rank 0", one(0, {}).finish(), loss, "rank 0"},
      {"rank 5", one(0, {1, 1, 1, 1, 1}).finish(), loss, "rank 5"},
      {"size 0", one(0, {4, 0}).finish(), loss, "dimension 1 of size 0"},
      {"size overflow", one(0, {uint64_t{1} << 32, uint64_t{1} << 32}).finish(), loss,
       "dimension 1"},
      {"negative size", one(0, {kHuge}).finish(), loss, "dimension 0"},
      {"bytes overflow", one(8, {uint64_t{1} << 62}).finish(), loss, "bytes"},
      {"block", one(3, {33}).finish(), loss, "rows of 33 weights; Q4_1 needs a multiple of 32"},
      {"rows not whole blocks", one(8, {16, 2}).finish(), loss, "multiple of 32"},
      {"unknown type", one(4242, {4}).finish(), StatusCode::kUnsupported,
       "tensor 't' has the unknown type id 4242"},
      {"withdrawn type", one(4, {32}).finish(), StatusCode::kUnsupported,
       "tensor 't' has the withdrawn type Q4_2"},
      {"offset overflow", one(0, {4}).set_last_offset(kHuge - 31).finish(), loss,
       "tensor 't' needs"},
      {"offset past the end", one(0, {4}).set_last_offset(64).finish(), loss, "tensor 't' needs"},
      {"unaligned offset", one(0, {4}).set_last_offset(8).finish(), loss, "multiple of 32"},
      {"too large", one(0, {17}).finish(), loss, "needs 68 bytes"},
      {"overlap", one(0, {4}).add_tensor("u", 0, {4}, data).set_last_offset(0).finish(), loss,
       "overlap"},
  };
}

TEST(GgufFile, NastyFilesAreRefusedByName) {
  std::vector<BadFile> cases = bad_headers();
  for (BadFile& bad : bad_tensors()) cases.push_back(std::move(bad));
  for (const BadFile& bad : cases) {
    const auto file = read(bad.bytes);
    ASSERT_FALSE(file.ok()) << bad.name;
    EXPECT_EQ(file.status().code(), bad.code) << bad.name;
    EXPECT_NE(file.status().message().find(bad.part), std::string::npos)
        << bad.name << ": " << file.status().message();
    EXPECT_EQ(file.status().message().find('\n'), std::string::npos) << bad.name;
    EXPECT_EQ(file.status().message().find("'sample'"), 0u) << bad.name;
  }
}

TEST(GgufFile, HonoursAlignment) {
  GgufWriter writer;
  writer.set_alignment(128).add_tensor("a", 0, {1}, {1, 2, 3, 4});
  writer.add_tensor("b", 0, {1}, {5, 6, 7, 8});
  const auto file = read(writer.finish());
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->find_tensor("b")->bytes[0], 5);
}

class GgufPath : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/longdecode_gguf_XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

TEST_F(GgufPath, OpensAFile) {
  const std::string path = folder_ / "good.gguf";
  const std::vector<uint8_t> bytes = sample().finish();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), std::streamsize(bytes.size()));
  auto file = GgufFile::open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  GgufFile moved = std::move(file).value();
  EXPECT_EQ(moved.num_bytes(), int64_t(bytes.size()));
  EXPECT_NE(touch(moved), 0);
}

TEST_F(GgufPath, RefusesWhatIsNoFile) {
  const std::string fifo = folder_ / "fifo";
  const std::string empty = folder_ / "empty.gguf";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  std::ofstream(empty).close();
  const auto expect = [](const std::string& path, StatusCode code, const std::string& part) {
    const auto file = GgufFile::open(path);
    ASSERT_FALSE(file.ok());
    EXPECT_EQ(file.status().code(), code);
    EXPECT_NE(file.status().message().find(part), std::string::npos) << file.status().message();
    EXPECT_NE(file.status().message().find(path), std::string::npos) << file.status().message();
  };
  expect(folder_, StatusCode::kInvalidArgument, "is a directory");
  expect(fifo, StatusCode::kInvalidArgument, "is a FIFO");
  expect(empty, StatusCode::kDataLoss, "is empty");
  expect(folder_ / "absent", StatusCode::kNotFound, "No such file");
  expect("/dev/null", StatusCode::kInvalidArgument, "is a device");
}

}  // namespace
}  // namespace longdecode::runner
