// import_dense: any source page size, dtype and stride equals appending; a refusal changes nothing.
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

#include "cache_rig.h"

namespace longdecode {
namespace {

struct Source {
  int32_t page_size;
  DType dtype;
  bool scattered;    // page ids shuffled, else consecutive
  bool interleaved;  // K and V pages alternate in one pool
  bool token_major;  // [page][token][head][dim] instead of [page][head][token][dim]
};

// An engine's paged cache that holds tokens 1 .. kv_len.
class PagedSourcePool {
 public:
  PagedSourcePool(const Source& source, const KvFormat& format, int32_t num_layers, int64_t kv_len)
      : source_(source), format_(format), num_pages_(kv_len / source.page_size + 3) {
    block_table.resize(num_pages_ - 2);
    std::iota(block_table.begin(), block_table.end(), 1);
    if (source.scattered) {
      std::mt19937 rng(3);
      std::shuffle(block_table.begin(), block_table.end(), rng);
    }
    memory_.resize(num_layers);
    for (int32_t l = 0; l < num_layers; ++l) {
      const int64_t page_elements =
          int64_t{source.page_size} * format.num_kv_heads * (format.key_dim + format.value_dim);
      memory_[l].assign(num_pages_ * page_elements * dtype_bytes(source.dtype) + 16, 0xff);
      const int64_t v_elements = source.interleaved
                                     ? page_elements - v_page_elements()
                                     : num_pages_ * (page_elements - v_page_elements());
      const int64_t page_stride = source.interleaved ? page_elements : 0;
      PagedKv layer;
      layer.k = view(l, 0, format.key_dim, page_stride);
      layer.v = view(l, v_elements, format.value_dim, page_stride);
      fill(layer.k, l, true, kv_len);
      fill(layer.v, l, false, kv_len);
      layers.push_back(layer);
    }
  }

  std::vector<PagedKv> layers;
  std::vector<int32_t> block_table;

 private:
  int64_t v_page_elements() const {
    return int64_t{source_.page_size} * format_.num_kv_heads * format_.value_dim;
  }
  TensorView view(int32_t l, int64_t first_element, int32_t dim, int64_t page_stride) {
    uint8_t* const base = memory_[l].data();
    uint8_t* const aligned = base + (16 - reinterpret_cast<uintptr_t>(base) % 16) % 16;
    TensorView result =
        TensorView::contiguous(aligned + first_element * dtype_bytes(source_.dtype), source_.dtype,
                               {num_pages_, format_.num_kv_heads, source_.page_size, dim});
    if (source_.token_major) {
      result.stride[1] = dim;
      result.stride[2] = int64_t{dim} * format_.num_kv_heads;
    }
    if (page_stride != 0) result.stride[0] = page_stride;
    for (int32_t i = 1; i < 3; ++i) {
      if (result.shape[i] == 1) result.stride[i] = -12345;  // to be ignored
    }
    return result;
  }
  void fill(const TensorView& pool, int32_t layer, bool is_key, int64_t kv_len) const {
    for (int64_t t = 0; t < kv_len; ++t) {
      for (int32_t h = 0; h < format_.num_kv_heads; ++h) {
        int64_t offset = block_table[t / source_.page_size] * pool.stride[0];
        if (pool.shape[1] > 1) offset += h * pool.stride[1];
        if (pool.shape[2] > 1) offset += t % source_.page_size * pool.stride[2];
        for (int32_t c = 0; c < pool.shape[3]; ++c) {
          store_element(pool.data, pool.dtype, offset + c,
                        token_value(static_cast<uint32_t>(t + 1), layer, is_key, h, c));
        }
      }
    }
  }

  Source source_;
  KvFormat format_;
  int64_t num_pages_;
  std::vector<std::vector<uint8_t>> memory_;
};

constexpr Source kSources[] = {
    {1, DType::kBF16, true, false, false},   {1, DType::kF32, false, false, true},
    {16, DType::kBF16, false, false, false}, {16, DType::kF16, true, true, false},
    {48, DType::kF32, false, true, true},    {64, DType::kBF16, true, false, true},
    {256, DType::kF16, false, false, true},
};

TEST(ImportDense, EqualsAppending) {
  for (const KvFormat& format : cache_formats()) {
    for (const Source& source : kSources) {
      for (const int64_t kv_len : {0, 1, 64, 136, 333}) {
        SCOPED_TRACE(testing::Message() << "page size " << format.page_size << " from "
                                        << source.page_size << ", kv_len " << kv_len);
        PagedSourcePool pool(source, format, 2, kv_len);
        if (format.op == Op::kMla) {
          for (PagedKv& layer : pool.layers) layer.v = TensorView{};
        }
        CacheRig rig(cache_desc(format, format.page_size == 1 ? 400 : 30, 2, 400));
        (void)rig.add();
        const SequenceId sequence = rig.add();
        Status status =
            rig.cache.import_dense(sequence, pool.layers, pool.block_table, kv_len, nullptr);
        ASSERT_TRUE(status.ok()) << status.message();
        for (int64_t t = 0; t < kv_len; ++t) {
          rig.model[sequence].push_back(static_cast<uint32_t>(t + 1));
        }
        ASSERT_NO_FATAL_FAILURE(rig.expect_equal_to_model());
        ASSERT_TRUE(rig.step(sequence, 9000, 5).ok());
        ASSERT_NO_FATAL_FAILURE(rig.expect_equal_to_model());
      }
    }
  }
}

TEST(ImportDense, ARefusalChangesNothing) {
  const KvFormat format = KvFormat::gqa(KeyEncoding::kTwoPlane, DType::kBF16, 2, 64, 64);
  CacheRig rig(cache_desc(format, 6, 3, 300));
  const SequenceId sequence = rig.add();
  const SequenceId other = rig.add();
  PagedSourcePool pool(kSources[2], format, 2, 200);
  const auto refused = [&](StatusCode code, const char* message, auto change, SequenceId to = 0,
                           int64_t kv_len = 200) {
    std::vector<PagedKv> layers = pool.layers;
    std::vector<int32_t> block_table = pool.block_table;
    change(layers, block_table);
    Status status = rig.cache.import_dense(to, layers, block_table, kv_len, nullptr);
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_NE(status.message().find(message), std::string::npos) << status.message();
    EXPECT_EQ(rig.cache.num_free_pages(), 6);
    EXPECT_EQ(rig.cache.kv_len(sequence).value(), 0);
  };
  ASSERT_EQ(sequence, 0);
  constexpr auto kInvalid = StatusCode::kInvalidArgument;
  refused(kInvalid, "layers has 1 elements", [](auto& layers, auto&) { layers.pop_back(); });
  refused(kInvalid, "layers[1].k.data", [](auto& l, auto&) { l[1].k.data = nullptr; });
  refused(kInvalid, "layers[1].v.dtype", [](auto& l, auto&) { l[1].v.dtype = DType{9}; });
  refused(kInvalid, "layers[0].k.rank", [](auto& l, auto&) { l[0].k.rank = 3; });
  refused(kInvalid, "layers[0].v.shape", [](auto& l, auto&) { l[0].v.shape[1] = 3; });
  refused(kInvalid, "layers[0].k.shape", [](auto& l, auto&) { l[0].k.shape[3] = 128; });
  refused(kInvalid, "layers[1].k.shape", [](auto& l, auto&) { l[1].k.shape[2] = 8; });
  refused(kInvalid, "layers[0].v.shape", [](auto& l, auto&) { l[0].v.shape[2] = 8; });
  refused(kInvalid, "layers[0].k.stride[2]", [](auto& l, auto&) { l[0].k.stride[2] = 63; });
  refused(kInvalid, "layers[0].k.stride[3]", [](auto& l, auto&) { l[0].k.stride[3] = 2; });
  refused(kInvalid, "layers[0].k.stride[0] is 1152921504606846976",
          [](auto& l, auto&) { l[0].k.stride[0] = int64_t{1} << 60; });
  refused(kInvalid, "block_table has 12 pages", [](auto&, auto& table) { table.resize(12); });
  refused(kInvalid, "block_table[12] is -1", [](auto&, auto& table) { table[12] = -1; });
  refused(kInvalid, "block_table[0] is 2147480000",
          [](auto&, auto& table) { table[0] = 2147480000; });
  const auto nothing = [](auto&, auto&) {};
  refused(kInvalid, "sequence is 5", nothing, 5);
  refused(kInvalid, "kv_len is -1", nothing, sequence, -1);
  refused(
      kInvalid, "kv_len is 301", [](auto&, auto& table) { table.resize(40, 1); }, sequence, 301);
  ASSERT_TRUE(rig.step(other, 1, 190).ok());
  Status status = rig.cache.import_dense(sequence, pool.layers, pool.block_table, 200, nullptr);
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
  EXPECT_NE(status.message().find("needs 4 pages; 3"), std::string::npos) << status.message();
  status = rig.cache.import_dense(other, pool.layers, pool.block_table, 10, nullptr);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  rig.expect_equal_to_model();
}

}  // namespace
}  // namespace longdecode
