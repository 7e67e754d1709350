// Batches below the planned one, ragged query lengths, layouts, optional outputs and streams: what
// DecodePlan promises whatever the numbers are.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "longdecode/attention.h"
#include "tests/gpu/mla_cases.h"

namespace longdecode::gpu_test {
namespace {

// Runs of every batch that a plan allows, with work for every CTA of an H200: equal lengths that
// leave no split idle, and others.
void test_smaller_batches(const DeviceInfo& device, Tally& tally) {
  struct Rows {
    int32_t heads, query_len, num_blocks;
  };
  for (int32_t max_batch : {4, 7, 8, 16, 32}) {
    for (int32_t batch = 1; batch <= max_batch; ++batch) {
      for (const Rows& rows : {Rows{16, 1, 1}, Rows{16, 4, 1}, Rows{128, 1, 2}}) {
        for (bool equal : {true, false}) {
          MlaCase c;
          c.num_heads = rows.heads;
          c.query_len = rows.query_len;
          c.max_batch = max_batch;
          c.rule = peaked_rule(batch * 100 + rows.heads + rows.query_len);
          const int32_t num_splits = std::max(1, 132 / rows.num_blocks / batch);
          for (int32_t s = 0; s < batch; ++s) {
            c.kv_lens.push_back(equal ? num_splits * 128 : (s % 3 + 1) * 12000 / batch + s);
          }
          run_case(c, device, peaked_tolerance(c.dtype), 16, tally,
                   fmt::format("max_batch {}", max_batch).c_str());
        }
      }
    }
  }
}

// Sequences without query tokens among others, runs shorter than the plan's max_query_len.
void test_query_lens(const DeviceInfo& device, Tally& tally) {
  const std::vector<int32_t> query_lens[] = {
      {}, {4, 0, 3, 1, 0, 2, 4, 0, 1}, std::vector<int32_t>(9, 0)};
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int32_t heads : {4, 16, 40, 128}) {
      for (bool causal : {true, false}) {
        for (bool batch_invariant : {false, true}) {
          for (const std::vector<int32_t>& lens : query_lens) {
            MlaCase c;
            c.dtype = dtype;
            c.num_heads = heads;
            c.causal = causal;
            c.batch_invariant = batch_invariant;
            c.query_len = 4;
            c.max_query_len = 8;
            c.query_lens = lens;
            c.kv_lens = {640, 700, 2, 0, 65, 500, 5000, 0, 300};
            c.rule = peaked_rule(heads);
            run_case(c, device, peaked_tolerance(dtype), 144, tally, "query lengths");
          }
        }
      }
    }
  }
}

// Latent rows with gaps, which hold NaN.
void test_pool_strides(const DeviceInfo& device, Tally& tally) {
  for (int32_t padding : {8, 64, 576}) {
    for (int32_t page_size : {16, 32, 64, 128}) {
      for (int32_t heads : {16, 64}) {
        for (int32_t factor : {1, 3}) {
          MlaCase c;
          c.num_heads = heads;
          c.page_size = page_size;
          c.kv_row_padding = padding;
          c.page_stride_factor = factor;
          c.kv_lens = {500, 3000, 0, page_size + 1, 63};
          c.rule = peaked_rule(padding + page_size);
          run_case(c, device, peaked_tolerance(c.dtype), 80, tally,
                   fmt::format("rows of {}", 576 + padding).c_str());
        }
      }
    }
  }
}

void test_without_lse(const DeviceInfo& device, Tally& tally) {
  for (int32_t heads : {8, 16, 64, 128}) {
    for (const std::vector<int32_t>& kv_lens :
         {std::vector<int32_t>{4096, 0, 500, 64}, {512, 449}, std::vector<int32_t>(40, 70)}) {
      MlaCase c;
      c.num_heads = heads;
      c.kv_lens = kv_lens;
      c.rule = peaked_rule(heads);
      MlaWorkload workload(c, device);
      check_status(workload.run(nullptr), "run");
      check_run(workload, peaked_tolerance(c.dtype), 64, tally, "with lse");
      const std::vector<uint16_t> bits = workload.raw_output();
      workload.poison_output();
      workload.args().lse = nullptr;
      check_status(workload.run(nullptr), "run");
      check_cuda(cudaDeviceSynchronize(), "run without lse");
      workload.fetch();
      tally.count(bits == workload.raw_output(),
                  fmt::format("without lse {}: other bits", c.describe()));
      tally.count(std::all_of(workload.raw_lse().begin(), workload.raw_lse().end(),
                              [](float x) { return std::bit_cast<uint32_t>(x) == 0xffffffff; }),
                  fmt::format("without lse {}: lse was written", c.describe()));
    }
  }
}

void test_empty_pool(const DeviceInfo& device, Tally& tally) {
  for (int32_t heads : {16, 128}) {
    for (int32_t batch : {1, 6, 40}) {
      for (bool has_memory : {true, false}) {
        MlaCase c;
        c.num_heads = heads;
        c.kv_lens.assign(batch, 0);
        c.max_kv_len = 1000;
        MlaWorkload workload(c, device);
        KvLayerView& kv = workload.args().kv;
        kv.num_pages = kv.k.shape[0] = 0;
        if (!has_memory) kv.k.data = nullptr;
        const Status status = workload.run(nullptr);
        tally.count(status.ok(), fmt::format("empty pool {}: {}", c.describe(), status.message()));
        if (status.ok()) check_run(workload, peaked_tolerance(c.dtype), 16, tally, "empty pool");
      }
    }
  }
}

// Both runs want every SM and wait for their own CTAs.
void test_two_streams(const DeviceInfo& device, Tally& tally) {
  MlaCase a, b;
  a.kv_lens = {3000, 3001, 2900};
  a.rule = peaked_rule(71);
  b.num_heads = 128;
  b.query_len = 2;
  b.dtype = DType::kF16;
  b.kv_lens = {500, 5000, 0, 1200};
  b.rule = peaked_rule(72);
  for (const auto& [first, second] : {std::pair(a, b), std::pair(a, a), std::pair(b, b)}) {
    MlaWorkload workloads[] = {{first, device}, {second, device}};
    cudaStream_t streams[2];
    for (cudaStream_t& stream : streams) {
      check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    }
    for (int32_t round = 0; round < 50; ++round) {
      for (int32_t i : {0, 1}) check_status(workloads[i].run(streams[i]), "run");
    }
    for (MlaWorkload& workload : workloads) {
      check_run(workload, peaked_tolerance(workload.mla_case().dtype), 96, tally, "two streams");
    }
    for (cudaStream_t stream : streams) check_cuda(cudaStreamDestroy(stream), "destroy");
  }
}

}  // namespace

void test_contract(const DeviceInfo& device, Tally& tally) {
  test_smaller_batches(device, tally);
  test_query_lens(device, tally);
  test_pool_strides(device, tally);
  test_without_lse(device, tally);
  test_empty_pool(device, tally);
  test_two_streams(device, tally);
}

}  // namespace longdecode::gpu_test
