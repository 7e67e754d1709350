// append: every byte that it owns has the right value, every other byte is untouched.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/float_convert.h"
#include "cpu/append.h"
#include "cpu/two_plane.h"

namespace longdecode::cpu {
namespace {

constexpr uint8_t kPoison = 0xff;  // NaN in every format
constexpr int32_t kNumPages = 9;
constexpr int32_t kMaxPages = 4;  // per sequence
constexpr int32_t kNumSlots = 3;

float key_at(int32_t b, int64_t token, int32_t head, int32_t c) {
  return 0.125f * float((token * 31 + b * 17 + head * 7 + c * 3) % 101) - 5.0f;
}
float value_at(int32_t b, int64_t token, int32_t head, int32_t c) {
  return -2.0f * key_at(b, token + 3, head, c + 1);
}

// One layer and its sequences; page ids are scattered, entries past the end garbage.
struct Layer {
  explicit Layer(const KvFormat& f) : format(f) {
    const bool two_plane = format.keys == KeyEncoding::kTwoPlane;
    const int64_t element = dtype_bytes(format.dtype);
    const int64_t rows = int64_t{kNumPages} * format.num_kv_heads * format.page_size;
    const auto pool = [&](std::vector<uint8_t>& bytes, int64_t dim) {
      bytes.assign(size_t(2 * rows * dim * element), kPoison);  // page stride: twice the page
      TensorView paged = TensorView::contiguous(
          bytes.data(), format.dtype, {kNumPages, format.num_kv_heads, format.page_size, dim});
      paged.stride[0] *= 2;
      return paged;
    };
    view.format = format;
    if (!two_plane) view.k = pool(k, format.key_dim);
    if (format.op == Op::kGqa) view.v = pool(v, format.value_dim);
    if (two_plane) {
      view.chunk_page_stride_bytes = format.num_kv_heads * format.chunk_bytes() + 64;
      view.residual_page_stride_bytes = format.num_kv_heads * format.residual_bytes() + 64;
      chunks.assign(size_t(kNumPages * view.chunk_page_stride_bytes), kPoison);
      residuals.assign(size_t(kNumPages * view.residual_page_stride_bytes), kPoison);
      view.chunks = chunks.data();
      view.residuals = residuals.data();
      view.num_pages = kNumPages;
      recent.assign(size_t(kNumSlots * format.num_kv_heads * format.recent_ring_tokens() *
                           format.key_dim * element),
                    kPoison);
      view.recent_k = TensorView::contiguous(
          recent.data(), format.dtype,
          {kNumSlots, format.num_kv_heads, format.recent_ring_tokens(), format.key_dim});
    }
  }

  // Appends new_lens[b] tokens; inputs hold max_new rows, NaN past new_lens[b].
  void append_tokens(const std::vector<int32_t>& new_lens, DType dtype) {
    const auto batch = int32_t(new_lens.size());
    const int32_t max_new = *std::max_element(new_lens.begin(), new_lens.end());
    if (max_new == 0) return;
    lens.resize(size_t(batch), 0);
    const auto input = [&](std::vector<uint8_t>& bytes, int32_t dim, auto at) {
      const int64_t size = int64_t{batch} * max_new * format.num_kv_heads * dim;
      bytes.assign(size_t(size * dtype_bytes(dtype)), kPoison);
      for (int32_t b = 0; b < batch; ++b) {
        for (int32_t t = 0; t < new_lens[size_t(b)]; ++t) {
          for (int32_t h = 0; h < format.num_kv_heads; ++h) {
            const int64_t row = ((int64_t{b} * max_new + t) * format.num_kv_heads + h) * dim;
            for (int32_t c = 0; c < dim; ++c) {
              store_element(bytes.data(), dtype, row + c, at(b, lens[size_t(b)] + t, h, c));
            }
          }
        }
      }
      return TensorView::contiguous(bytes.data(), dtype,
                                    {batch, max_new, format.num_kv_heads, dim});
    };
    std::vector<uint8_t> key_bytes;
    std::vector<uint8_t> value_bytes;
    AppendArgs args;
    args.k = input(key_bytes, format.key_dim, key_at);
    if (format.op == Op::kGqa) args.v = input(value_bytes, format.value_dim, value_at);
    for (int32_t b = 0; b < batch; ++b) lens[size_t(b)] += new_lens[size_t(b)];
    args.kv = view;
    args.batch = {batch, table.data(), kMaxPages, lens.data(), new_lens.data(), slots.data()};
    DeviceInfo device;
    device.num_threads = 2;
    append(args, device);
  }

  // Element of a pool row, or of the ring.
  float element(const TensorView& pool, int64_t i, int32_t head, int64_t row, int32_t c) const {
    return load_element(pool.data, pool.dtype,
                        i * pool.stride[0] + head * pool.stride[1] + row * pool.stride[2] + c);
  }
  int32_t page_id(int32_t b, int64_t token) const {
    return table[size_t(b * kMaxPages + token / format.page_size)];
  }

  KvFormat format;
  KvLayerView view;
  std::vector<uint8_t> k, v, chunks, residuals, recent;
  std::vector<int32_t> lens;
  std::vector<int32_t> table = {7, 2, 5, 2147480000, 0, 4, -1, INT32_MIN, 8, 3, 6, -7};
  std::vector<int32_t> slots = {2, 0, 1};
};

float rounded(float value, DType dtype) {
  uint32_t bits = 0;
  store_element(&bits, dtype, 0, value);
  return load_element(&bits, dtype, 0);
}

TEST(Append, PlainPagesHoldEveryTokenAndNothingElse) {
  for (DType stored : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (DType given : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (bool mla : {false, true}) {
        const KvFormat format =
            mla ? KvFormat::mla(stored, 16) : KvFormat::gqa(KeyEncoding::kPlain, stored, 2, 80, 16);
        Layer layer(format);
        layer.append_tokens({13, 0, 17}, given);
        layer.append_tokens({1, 16, 3}, given);
        int64_t written = 0;
        for (int32_t b = 0; b < 3; ++b) {
          for (int64_t t = 0; t < layer.lens[size_t(b)]; ++t) {
            for (int32_t h = 0; h < format.num_kv_heads; ++h) {
              for (int32_t c = 0; c < format.key_dim; ++c) {
                ASSERT_EQ(layer.element(layer.view.k, layer.page_id(b, t), h, t % 16, c),
                          rounded(rounded(key_at(b, t, h, c), given), stored));
              }
              written += format.key_dim;
              for (int32_t c = 0; c < format.value_dim && !mla; ++c) {
                ASSERT_EQ(layer.element(layer.view.v, layer.page_id(b, t), h, t % 16, c),
                          rounded(rounded(value_at(b, t, h, c), given), stored));
              }
            }
          }
        }
        int64_t not_poison = 0;
        for (size_t i = 0; i < layer.k.size() / size_t(dtype_bytes(stored)); ++i) {
          const float x = load_element(layer.k.data(), stored, int64_t(i));
          not_poison += x == x;
        }
        EXPECT_EQ(not_poison, written);
      }
    }
  }
}

class AppendTwoPlane : public testing::TestWithParam<int32_t> {};

TEST_P(AppendTwoPlane, DuePagesAreQuantizedFromTheRoundedKeys) {
  const int32_t page = GetParam();
  const KvFormat format = KvFormat::gqa(KeyEncoding::kTwoPlane, DType::kBF16, 2, 80, page);
  Layer layer(format);
  layer.append_tokens({3 * page - 1, page + 8, 7}, DType::kF32);
  for (int32_t b = 0; b < 3; ++b) {
    const int64_t due = format.num_quantized_pages(layer.lens[size_t(b)]);
    EXPECT_EQ(due, (std::vector<int64_t>{2, 1, 0})[size_t(b)]);
    for (int32_t h = 0; h < 2; ++h) {
      for (int64_t p = 0; p < due; ++p) {
        std::vector<float> keys;
        std::vector<const void*> rows;
        keys.reserve(size_t(page) * 80);
        for (int32_t t = 0; t < page; ++t) {
          rows.push_back(keys.data() + keys.size());
          for (int32_t c = 0; c < 80; ++c) {
            keys.push_back(rounded(key_at(b, p * page + t, h, c), DType::kBF16));
          }
        }
        std::vector<uint8_t> chunk(size_t(format.chunk_bytes()));
        std::vector<uint8_t> residuals(size_t(format.residual_bytes()));
        quantize_page(format, rows.data(), DType::kF32, chunk.data(), residuals.data());
        const int32_t id = layer.page_id(b, p * page);
        EXPECT_EQ(0, std::memcmp(chunk.data(),
                                 layer.view.chunks + id * layer.view.chunk_page_stride_bytes +
                                     h * format.chunk_bytes(),
                                 chunk.size()));
        EXPECT_EQ(0, std::memcmp(residuals.data(),
                                 layer.view.residuals + id * layer.view.residual_page_stride_bytes +
                                     h * format.residual_bytes(),
                                 residuals.size()));
      }
      for (int64_t t = due * page; t < layer.lens[size_t(b)]; ++t) {
        for (int32_t c = 0; c < 80; ++c) {
          ASSERT_EQ(layer.element(layer.view.recent_k, layer.slots[size_t(b)], h,
                                  t % format.recent_ring_tokens(), c),
                    rounded(key_at(b, t, h, c), DType::kBF16));
        }
      }
    }
  }
}

TEST_P(AppendTwoPlane, TheSplitOverCallsDoesNotMatter) {
  const int32_t page = GetParam();
  const KvFormat format = KvFormat::gqa(KeyEncoding::kTwoPlane, DType::kF16, 2, 64, page);
  Layer whole(format);
  whole.append_tokens({3 * page - 1, page + 8, 2 * page + 7}, DType::kF32);
  for (int32_t piece : {1, 5, page - 1, page + 3}) {
    Layer pieces(format);
    pieces.lens = {0, 0, 0};
    while (pieces.lens != whole.lens) {
      std::vector<int32_t> next;
      for (size_t b = 0; b < 3; ++b)
        next.push_back(std::min(piece, whole.lens[b] - pieces.lens[b]));
      pieces.append_tokens(next, DType::kF32);
    }
    EXPECT_EQ(pieces.v, whole.v) << piece;
    EXPECT_EQ(pieces.chunks, whole.chunks) << piece;
    EXPECT_EQ(pieces.residuals, whole.residuals) << piece;
    EXPECT_EQ(pieces.recent, whole.recent) << piece;
  }
}

TEST_P(AppendTwoPlane, TruncateAndAppendAgainEqualsAppend) {
  const int32_t page = GetParam();
  const KvFormat format = KvFormat::gqa(KeyEncoding::kTwoPlane, DType::kF16, 1, 64, page);
  for (int32_t len = page + 1; len <= page + 16; ++len) {
    Layer straight(format);
    straight.append_tokens({len}, DType::kF16);
    Layer back(format);
    back.append_tokens({len}, DType::kF16);
    back.lens[0] -= kMaxTruncateTokens;
    back.append_tokens({3}, DType::kF16);
    back.append_tokens({kMaxTruncateTokens - 3}, DType::kF16);
    EXPECT_EQ(back.chunks, straight.chunks) << len;
    EXPECT_EQ(back.residuals, straight.residuals) << len;
    EXPECT_EQ(back.recent, straight.recent) << len;
  }
}

INSTANTIATE_TEST_SUITE_P(PageSizes, AppendTwoPlane, testing::Values(64, 128));

}  // namespace
}  // namespace longdecode::cpu
