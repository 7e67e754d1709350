// Multi-head latent attention, as in DeepSeek, over pages that the program owns, without KvCache: a
// ragged batch with scattered pages and two query tokens a sequence, every row checked against the
// textbook formula. Exits with 1 when the result is wrong.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <numeric>
#include <random>
#include <vector>

#include "longdecode/longdecode.h"

namespace ld = longdecode;

namespace {

constexpr int kNumHeads = 16;
constexpr int kKeyDim = ld::kMlaKeyDim;      // 512 latent channels, 64 RoPE channels
constexpr int kValueDim = ld::kMlaValueDim;  // the latent channels of the same row
constexpr int kPageSize = 64;
constexpr int kNumPages = 32;     // of the pool
constexpr int kPagesPerRow = 16;  // of the block table
constexpr int kQueryLen = 2;      // as with one draft token
constexpr int32_t kKvLens[] = {1000, 1, 0, 300};
constexpr int kBatch = 4;
constexpr int kNumRows = kBatch * kQueryLen * kNumHeads;

void check(const ld::Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s: %s\n", what, status.message().c_str());
  std::exit(1);
}

float from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

uint16_t to_bf16(float value) {  // to nearest even; no NaN comes here
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// The scale is that of a head before W_UK is absorbed into q: 128 + 64 channels.
float softmax_scale() { return 1.0f / std::sqrt(192.0f); }

// What an engine has of its own. Rows that no token owns are NaN and reach no result; entries of
// the table that no sequence uses are not read.
struct Engine {
  std::vector<uint16_t> pool = std::vector<uint16_t>(kNumPages * kPageSize * kKeyDim, 0xffff);
  std::vector<int32_t> block_table = std::vector<int32_t>(kBatch * kPagesPerRow, -1);
  std::vector<uint16_t> q = std::vector<uint16_t>(kNumRows * kKeyDim);

  Engine() {
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    std::vector<int32_t> free_pages(kNumPages);
    std::iota(free_pages.begin(), free_pages.end(), 0);
    std::shuffle(free_pages.begin(), free_pages.end(), rng);
    for (int b = 0; b < kBatch; ++b) {
      for (int token = 0; token < kKvLens[b]; ++token) {
        if (token % kPageSize == 0) {
          block_table[size_t(b * kPagesPerRow + token / kPageSize)] = free_pages.back();
          free_pages.pop_back();
        }
        uint16_t* values = row(b, token);
        for (int c = 0; c < kKeyDim; ++c) values[c] = to_bf16(normal(rng));
      }
    }
    for (uint16_t& value : q) value = to_bf16(normal(rng));
  }

  uint16_t* row(int b, int token) {
    const int32_t page = block_table[size_t(b * kPagesPerRow + token / kPageSize)];
    return &pool[size_t(page * kPageSize + token % kPageSize) * kKeyDim];
  }
};

// Largest differences to the textbook.
struct Errors {
  double o = 0.0;  // relative where the value is above 1: o is rounded to bf16
  double lse = 0.0;

  static void raise(double& largest, double error) {  // std::max would pass over a NaN
    largest = std::max(largest, std::isnan(error) ? INFINITY : error);
  }
};

// One row against o = sum_j softmax(scale * q . k_j)_j v_j and its lse, in double. Query token t
// sees the tokens up to its own, kv_len - kQueryLen + t; where that is none (the first of two with
// a kv_len of 1), o is 0 and lse -infinity.
void check_row(Engine& engine, int row, const uint16_t* o, float lse, Errors& errors) {
  const int b = row / (kQueryLen * kNumHeads);
  const int visible = kKvLens[b] - kQueryLen + row / kNumHeads % kQueryLen + 1;
  const uint16_t* q = &engine.q[size_t(row) * kKeyDim];
  std::vector<double> sum(kValueDim, 0.0);
  double denominator = 0.0;
  for (int j = 0; j < visible; ++j) {
    const uint16_t* k = engine.row(b, j);
    double score = 0.0;
    for (int c = 0; c < kKeyDim; ++c) score += double(from_bf16(q[c])) * from_bf16(k[c]);
    const double weight = std::exp(score * softmax_scale());
    denominator += weight;
    for (int c = 0; c < kValueDim; ++c) sum[size_t(c)] += weight * from_bf16(k[c]);
  }
  for (int c = 0; c < kValueDim; ++c) {
    const double value = visible > 0 ? sum[size_t(c)] / denominator : 0.0;
    Errors::raise(errors.o, std::abs(value - from_bf16(o[c])) / std::max(1.0, std::abs(value)));
  }
  const double expected_lse = std::log(denominator);  // log(0) is -infinity
  if (expected_lse != lse) Errors::raise(errors.lse, std::abs(expected_lse - lse));
}

}  // namespace

int main() {
  auto device = ld::detect_device(ld::DeviceType::kCpu);
  check(device.status(), "detect_device");
  Engine engine;

  ld::DecodeDesc desc;
  desc.format = ld::KvFormat::mla(ld::DType::kBF16, kPageSize);
  desc.num_q_heads = kNumHeads;
  desc.max_batch = kBatch;
  desc.max_query_len = kQueryLen;
  desc.max_kv_len = kPagesPerRow * kPageSize;
  desc.softmax_scale = softmax_scale();
  auto plan = ld::DecodePlan::create(desc, *device);
  check(plan.status(), "DecodePlan::create");
  std::vector<float> workspace(static_cast<size_t>(plan->workspace_bytes()) / sizeof(float) + 4);
  check(plan->init(workspace.data(), nullptr), "init");

  std::vector<uint16_t> o(kNumRows * kValueDim, 0xffff);
  std::vector<float> lse(kNumRows);
  const auto view = [](std::vector<uint16_t>& data, std::initializer_list<int64_t> shape) {
    return ld::TensorView::contiguous(data.data(), ld::DType::kBF16, shape);
  };
  ld::DecodeArgs args;
  args.query_len = kQueryLen;
  args.q = view(engine.q, {kBatch, kQueryLen, kNumHeads, kKeyDim});
  args.o = view(o, {kBatch, kQueryLen, kNumHeads, kValueDim});
  args.lse = lse.data();
  args.kv.format = desc.format;
  args.kv.k = view(engine.pool, {kNumPages, 1, kPageSize, kKeyDim});  // there is no v
  args.batch.batch = kBatch;
  args.batch.block_table = engine.block_table.data();
  args.batch.block_table_stride = kPagesPerRow;
  args.batch.kv_lens = kKvLens;
  check(plan->run(args, nullptr), "run");

  Errors errors;
  for (int row = 0; row < kNumRows; ++row) {
    check_row(engine, row, &o[size_t(row) * kValueDim], lse[size_t(row)], errors);
  }
  std::printf("%s (%s): %d sequences, %d query tokens each, %d heads\n",
              plan->kernel().name.c_str(), plan->kernel().isa.c_str(), kBatch, kQueryLen,
              kNumHeads);
  for (int b = 0; b < kBatch; ++b) {
    const size_t row = size_t(b) * kQueryLen * kNumHeads;
    std::printf("kv_len %4d: head 0 has lse %.4f and %.4f\n", kKvLens[b], double(lse[row]),
                double(lse[row + kNumHeads]));
  }
  std::printf("largest error: o %.2g, lse %.2g\n", errors.o, errors.lse);
  // bf16 has 8 significant bits: rounded to nearest, at most 2^-8 of the value is lost.
  return errors.o < 1.1 / 256 && errors.lse < 1e-4 ? 0 : 1;
}
