#include "tests/gpu/mla_workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "base/float_convert.h"
#include "tests/gpu/fill.h"

namespace longdecode::gpu_test {
namespace {

constexpr int32_t kGarbagePages[] = {2147480000, -1, INT_MIN};

// Behind the workspace: its first bytes are those of the first partial result too many.
constexpr int64_t kCanaryBytes = 4096;
constexpr uint8_t kCanary = 0x5a;

int64_t pages_of(int32_t kv_len, int32_t page_size) { return (kv_len + page_size - 1) / page_size; }

}  // namespace

float round_through(float value, DType dtype) {
  return dtype == DType::kF16 ? f16_to_f32(f32_to_f16(value)) : bf16_to_f32(f32_to_bf16(value));
}

void check_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("%s: %s (%s)\n", what, cudaGetErrorName(error), cudaGetErrorString(error));
  std::fflush(stdout);
  std::exit(2);
}

void check_status(const Status& status, const char* what) {
  if (status.ok()) return;
  std::printf("%s: %s\n", what, status.message().c_str());
  std::fflush(stdout);
  std::exit(2);
}

DeviceBuffer::DeviceBuffer(int64_t num_bytes) : num_bytes_(std::max<int64_t>(num_bytes, 16)) {
  check_cuda(cudaMalloc(&data_, num_bytes_), "cudaMalloc");
}
DeviceBuffer::~DeviceBuffer() { cudaFree(data_); }
void DeviceBuffer::poison() { check_cuda(cudaMemset(data_, 0xff, num_bytes_), "cudaMemset"); }

std::string MlaCase::describe() const {
  const int32_t longest = kv_lens.empty() ? 0 : *std::max_element(kv_lens.begin(), kv_lens.end());
  return fmt::format("batch {} query_len {}{} heads {} kv_len {} page {} {} {}{}", kv_lens.size(),
                     query_len, query_lens.empty() ? "" : " ragged", num_heads, longest, page_size,
                     dtype == DType::kF16 ? "f16" : "bf16", causal ? "causal" : "full",
                     batch_invariant ? " batch-invariant" : "");
}

MlaWorkload::MlaWorkload(const MlaCase& c, const DeviceInfo& device) : case_(c), device_(device) {
  const int32_t batch = static_cast<int32_t>(c.kv_lens.size());
  const int64_t longest =
      std::max<int64_t>({1, c.max_kv_len, *std::max_element(c.kv_lens.begin(), c.kv_lens.end())});
  desc_.format = KvFormat::mla(c.dtype, c.page_size);
  desc_.q_dtype = c.dtype;
  desc_.num_q_heads = c.num_heads;
  desc_.max_batch = std::max(batch, c.max_batch);
  desc_.max_query_len = std::max(c.query_len, c.max_query_len);
  desc_.max_kv_len = longest;
  desc_.softmax_scale = 1.0f / 24.0f;
  desc_.causal = c.causal;
  desc_.batch_invariant = c.batch_invariant;
  auto plan = DecodePlan::create(desc_, device);
  check_status(plan.status(), "DecodePlan::create");
  plan_ = std::make_unique<DecodePlan>(std::move(plan).value());

  block_table_stride_ = pages_of(static_cast<int32_t>(longest), c.page_size) + 3;
  num_pages_ = c.num_pages;
  if (num_pages_ == 0) {
    num_pages_ = 5;
    for (const int32_t kv_len : c.kv_lens) num_pages_ += pages_of(kv_len, c.page_size);
  }
  const int64_t kv_row = 576 + c.kv_row_padding, page_elements = c.page_size * kv_row;
  pool_ = std::make_unique<DeviceBuffer>(num_pages_ * c.page_stride_factor * page_elements * 2);
  table_ = std::make_unique<DeviceBuffer>(batch * block_table_stride_ * 4);
  kv_lens_ = std::make_unique<DeviceBuffer>(int64_t{batch} * 4);
  query_lens_ = std::make_unique<DeviceBuffer>(int64_t{batch} * 4);
  const int64_t num_rows = int64_t{batch} * c.query_len * c.num_heads;
  const int64_t q_row = 576 + c.row_padding, o_row = 512 + c.row_padding;
  q_ = std::make_unique<DeviceBuffer>(num_rows * q_row * 2);
  o_ = std::make_unique<DeviceBuffer>(num_rows * o_row * 2);
  lse_buffer_ = std::make_unique<DeviceBuffer>(num_rows * 4);
  workspace_ = std::make_unique<DeviceBuffer>(plan_->workspace_bytes() + kCanaryBytes);
  workspace_->poison();
  check_cuda(cudaMemset(canary(), kCanary, kCanaryBytes), "cudaMemset");
  check_status(plan_->init(workspace_->data(), nullptr), "init");

  const auto view = [&](void* data, int64_t row, int64_t dim) {
    TensorView v = TensorView::contiguous(data, c.dtype, {batch, c.query_len, c.num_heads, dim});
    v.stride[2] = row;
    v.stride[1] = row * c.num_heads;
    v.stride[0] = v.stride[1] * c.query_len;
    return v;
  };
  args_.query_len = c.query_len;
  args_.q = view(q_->data(), q_row, 576);
  args_.o = view(o_->data(), o_row, 512);
  args_.lse = static_cast<float*>(lse_buffer_->data());
  args_.kv.format = desc_.format;
  args_.kv.num_pages = num_pages_;
  args_.kv.k = TensorView::contiguous(pool_->data(), c.dtype, {num_pages_, 1, c.page_size, 576});
  args_.kv.k.stride[2] = kv_row;
  args_.kv.k.stride[1] = page_elements;
  args_.kv.k.stride[0] = page_elements * c.page_stride_factor;
  args_.batch.batch = batch;
  args_.batch.block_table = static_cast<const int32_t*>(table_->data());
  args_.batch.block_table_stride = block_table_stride_;
  args_.batch.kv_lens = static_cast<const int32_t*>(kv_lens_->data());
  args_.batch.query_lens =
      c.query_lens.empty() ? nullptr : static_cast<const int32_t*>(query_lens_->data());
  refill(c);
}

// Shuffled pages; every entry past a sequence's end is garbage.
void MlaWorkload::place_pages() {
  std::vector<int32_t> table(batch() * block_table_stride_);
  for (size_t i = 0; i < table.size(); ++i) table[i] = kGarbagePages[i % 3];
  uint64_t state = case_.rule.seed * 77 + 5;
  const auto random = [&](int64_t below) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(below));
  };
  std::vector<int32_t> pages(num_pages_);
  std::iota(pages.begin(), pages.end(), 0);
  int64_t used = 0;
  for (int32_t sequence = 0; sequence < batch(); ++sequence) {
    for (int64_t i = 0; i < pages_of(case_.kv_lens[sequence], case_.page_size); ++i, ++used) {
      if (used >= num_pages_) check_cuda(cudaErrorMemoryAllocation, "pages of the test pool");
      std::swap(pages[used], pages[used + random(num_pages_ - used)]);
      table[sequence * block_table_stride_ + i] = pages[used];
    }
  }
  check_cuda(cudaMemcpy(table_->data(), table.data(), table.size() * 4, cudaMemcpyHostToDevice),
             "block table");
}

void MlaWorkload::refill(const MlaCase& c) {
  case_.kv_lens = c.kv_lens;
  case_.query_lens = c.query_lens;
  case_.rule = c.rule;
  place_pages();
  check_cuda(
      cudaMemcpy(kv_lens_->data(), c.kv_lens.data(), c.kv_lens.size() * 4, cudaMemcpyHostToDevice),
      "kv_lens");
  if (!c.query_lens.empty()) {
    check_cuda(cudaMemcpy(query_lens_->data(), c.query_lens.data(), c.query_lens.size() * 4,
                          cudaMemcpyHostToDevice),
               "query_lens");
  }
  pool_->poison();
  q_->poison();
  poison_output();
  check_cuda(fill_pool(c.rule, args_.kv.k, args_.batch.block_table, block_table_stride_,
                       args_.batch.kv_lens, batch(), c.page_size, nullptr),
             "fill_pool");
  check_cuda(fill_query(c.rule, args_.q, args_.batch.query_lens, nullptr), "fill_query");
  check_cuda(cudaDeviceSynchronize(), "fill");
}

void MlaWorkload::poison_output() {
  o_->poison();
  lse_buffer_->poison();
}

void MlaWorkload::poison_input() {
  q_->poison();
  pool_->poison();
}

Status MlaWorkload::run(cudaStream_t stream) { return plan_->run(args_, stream); }

void MlaWorkload::fetch() {
  raw_output_.resize(o_->num_bytes() / 2);
  lse_.resize(lse_buffer_->num_bytes() / 4);
  check_cuda(
      cudaMemcpy(raw_output_.data(), o_->data(), raw_output_.size() * 2, cudaMemcpyDeviceToHost),
      "output");
  check_cuda(cudaMemcpy(lse_.data(), lse_buffer_->data(), lse_.size() * 4, cudaMemcpyDeviceToHost),
             "lse");
  std::vector<uint8_t> canary_bytes(kCanaryBytes);
  check_cuda(cudaMemcpy(canary_bytes.data(), canary(), kCanaryBytes, cudaMemcpyDeviceToHost),
             "canary");
  canary_intact_ = std::all_of(canary_bytes.begin(), canary_bytes.end(),
                               [](uint8_t byte) { return byte == kCanary; });
}

void* MlaWorkload::canary() const {
  return static_cast<uint8_t*>(workspace_->data()) + plan_->workspace_bytes();
}

int32_t MlaWorkload::query_len_of(int32_t sequence) const {
  return case_.query_lens.empty() ? case_.query_len : case_.query_lens[sequence];
}

const float* MlaWorkload::output(const Row& row) const {
  row_output_.resize(512);
  const int64_t offset = row.sequence * args_.o.stride[0] + row.token * args_.o.stride[1] +
                         row.head * args_.o.stride[2];
  for (int64_t d = 0; d < 512; ++d) {
    row_output_[d] = load_element(raw_output_.data(), case_.dtype, offset + d);
  }
  return row_output_.data();
}

float MlaWorkload::lse(const Row& row) const {
  return lse_[(int64_t{row.sequence} * case_.query_len + row.token) * case_.num_heads + row.head];
}

std::vector<float> MlaWorkload::keys(int32_t sequence) const {
  std::vector<float> keys(int64_t{case_.kv_lens[sequence]} * 576);
  for (int64_t token = 0; token < case_.kv_lens[sequence]; ++token) {
    for (int32_t c = 0; c < 576; ++c) {
      keys[token * 576 + c] = round_through(k_value(case_.rule, sequence, token, c), case_.dtype);
    }
  }
  return keys;
}

Reference MlaWorkload::reference(const Row& row, const std::vector<float>& keys,
                                 Mutant mutant) const {
  const int32_t kv_len = case_.kv_lens[row.sequence];
  const bool causal = case_.causal && mutant != Mutant::kIgnoreCausal;
  int64_t end = causal ? kv_len - query_len_of(row.sequence) + row.token + 1 : kv_len;
  if (mutant == Mutant::kSkipLastPage) {
    end = std::min<int64_t>(end, (pages_of(kv_len, case_.page_size) - 1) * case_.page_size);
  }
  if (mutant == Mutant::kDropSplit) end = end * 3 / 4;
  end = std::max<int64_t>(end, 0);
  const int32_t used_dim = mutant == Mutant::kDropRope ? 512 : 576;
  const int64_t q_row =
      (int64_t{row.sequence} * case_.query_len + row.token) * case_.num_heads + row.head;
  double q[576];
  for (int32_t c = 0; c < 576; ++c) {
    q[c] = mutant == Mutant::kIgnoreQuery
               ? 0.0
               : round_through(q_value(case_.rule, q_row, c), case_.dtype);
  }
  std::vector<double> scores(end);
  double score_max = -INFINITY;
  for (int64_t token = 0; token < end; ++token) {
    double score = 0;
    for (int32_t c = 0; c < used_dim; ++c) score += q[c] * keys[token * 576 + c];
    scores[token] = score * double{desc_.softmax_scale};
    score_max = std::max(score_max, scores[token]);
  }
  Reference result{std::vector<double>(512, 0.0), -INFINITY};
  double sum = 0;
  for (int64_t token = 0; token < end; ++token) {
    const double weight = std::exp(scores[token] - score_max);
    sum += weight;
    for (int32_t d = 0; d < 512; ++d) result.o[d] += weight * keys[token * 576 + d];
  }
  if (end == 0) return result;
  for (double& value : result.o) value /= sum;
  result.lse = score_max + std::log(sum);
  return result;
}

int64_t MlaWorkload::bytes() const {
  const int64_t tokens = std::accumulate(case_.kv_lens.begin(), case_.kv_lens.end(), int64_t{0});
  return tokens * 1152 + int64_t{batch()} * case_.query_len * case_.num_heads * (1152 + 1024);
}

}  // namespace longdecode::gpu_test
