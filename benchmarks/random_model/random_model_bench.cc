#include "benchmarks/random_model/random_model_bench.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "benchmarks/random_model/random_model.h"
#include "benchmarks/random_model/step_breakdown.h"
#include "cuda/host/status.h"
#include "runner/gpu/decode_loop.h"
#include "runner/gpu/device_weights.h"
#include "runner/gpu/gpu_decoder.h"
#include "runner/gpu/step_graphs.h"

namespace longdecode::gpu_bench {
namespace {

using cuda::cuda_status;
using runner::DecodeLoop;
using runner::GpuDecoder;

constexpr int64_t kWarmUpSteps = 16;
constexpr int64_t kStatsSteps = 4;

struct StreamDeleter {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, StreamDeleter>;

// One filled batch, measured under every graph mode.
class PlantedRuns {
 public:
  PlantedRuns(const RandomModelSpec& spec, const runner::ModelConfig& config,
              const runner::DeviceWeights& weights, const runner::SessionOptions& options,
              PlantedBatch planted, cudaStream_t stream)
      : spec_(spec),
        config_(config),
        weights_(weights),
        options_(options),
        planted_(std::move(planted)),
        stream_(stream) {}

  Result<RandomModelRow> measure(int32_t batch, int64_t depth, runner::GraphMode graph) {
    RandomModelRow row;
    row.model = spec_.model;
    row.method = options_.method;
    row.graph = graph;
    row.batch = batch;
    row.depth = depth;
    row.num_steps = spec_.num_steps;
    row.weight_bytes = static_cast<double>(weights_.step_bytes(config_));
    LD_ASSIGN_OR_RETURN(const std::unique_ptr<GpuDecoder> decoder, make_decoder(batch, false));
    row.kernel = decoder->kernel_name();
    runner::StepGraphs graphs(graph, stream_);
    LD_ASSIGN_OR_RETURN(const std::unique_ptr<DecodeLoop> loop,
                        DecodeLoop::create(decoder.get(), &graphs, &planted_.cache()));
    LD_RETURN_IF_ERROR(run(decoder.get(), loop.get(), kWarmUpSteps).status());
    const runner::GraphStats before = graphs.stats();
    for (int64_t rep = 0; rep < spec_.num_reps; ++rep) {
      LD_ASSIGN_OR_RETURN(const double seconds, run(decoder.get(), loop.get(), spec_.num_steps));
      row.tok_s.push_back(static_cast<double>(batch * spec_.num_steps) / seconds);
    }
    row.graph_stats = difference(before, graphs.stats());
    LD_RETURN_IF_ERROR(add_statistics(&row));
    return add_breakdown(decoder.get(), std::move(row));
  }

 private:
  Result<std::unique_ptr<GpuDecoder>> make_decoder(int32_t batch, bool wants_stats) {
    runner::GpuDecoderLimits limits;
    limits.max_batch = batch;
    limits.wants_stats = wants_stats;
    LD_ASSIGN_OR_RETURN(std::unique_ptr<GpuDecoder> decoder,
                        GpuDecoder::create(config_, weights_, options_,
                                           planted_.cache().desc().format, limits, stream_));
    decoder->set_planted_queries(planted_.queries());
    return decoder;
  }

  // Seconds of num_steps steps from the filled depth on.
  Result<double> run(GpuDecoder* decoder, DecodeLoop* loop, int64_t num_steps) {
    LD_ASSIGN_OR_RETURN(const std::vector<SequenceId> forks, planted_.fork());
    const std::vector<int32_t> ids(forks.size(), 1);
    LD_RETURN_IF_ERROR(decoder->set_ids(ids));
    LD_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(stream_), "preparing a run"));
    runner::DecodeLoopRequest request;
    request.sampler.temperature = 0.0f;
    request.max_steps = num_steps;
    request.samples_first = false;
    const auto start = std::chrono::steady_clock::now();
    LD_RETURN_IF_ERROR(loop->run(forks, request).status());
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    LD_RETURN_IF_ERROR(planted_.free_forks(forks));
    return passed.count();
  }

  static runner::GraphStats difference(const runner::GraphStats& before, runner::GraphStats after) {
    after.num_captures -= before.num_captures;
    after.num_replays -= before.num_replays;
    after.capture_s -= before.capture_s;
    after.instantiate_s -= before.instantiate_s;
    after.launch_s -= before.launch_s;
    return after;
  }

  // By a decoder that collects them, because that takes time.
  Status add_statistics(RandomModelRow* row) {
    if (options_.method == Method::kDense) {
      const KvFormat& format = planted_.cache().desc().format;
      const double kv_len =
          static_cast<double>(row->depth) + (static_cast<double>(spec_.num_steps) + 1.0) / 2.0;
      row->kv_bytes = format.bytes_per_token() * config_.num_layers * row->batch * kv_len;
      return Status();
    }
    LD_ASSIGN_OR_RETURN(const std::unique_ptr<GpuDecoder> decoder, make_decoder(row->batch, true));
    runner::StepGraphs graphs(runner::GraphMode::kOff, stream_);
    LD_ASSIGN_OR_RETURN(const std::unique_ptr<DecodeLoop> loop,
                        DecodeLoop::create(decoder.get(), &graphs, &planted_.cache()));
    LD_RETURN_IF_ERROR(run(decoder.get(), loop.get(), kStatsSteps).status());
    LD_ASSIGN_OR_RETURN(const runner::GpuDecodeSums sums, decoder->sums());
    row->kept_fraction = sums.kept / sums.tokens;
    row->kv_bytes = sums.bytes / sums.tokens * row->batch;
    return Status();
  }

  Result<RandomModelRow> add_breakdown(GpuDecoder* decoder, RandomModelRow row) {
    LD_ASSIGN_OR_RETURN(const std::vector<SequenceId> forks, planted_.fork());
    const std::vector<int32_t> one(forks.size(), 1);
    const std::vector<int32_t> lens(forks.size(), static_cast<int32_t>(row.depth) + 1);
    LD_RETURN_IF_ERROR(planted_.cache().reserve(forks, one));
    LD_RETURN_IF_ERROR(decoder->set_kv_lens(lens));
    double seconds = 0.0;
    for (const double rate : row.tok_s) seconds += row.batch / rate;
    const double step_us = 1e6 * seconds / static_cast<double>(row.tok_s.size());
    LD_ASSIGN_OR_RETURN(row.breakdown, measure_breakdown(decoder, planted_.cache(), step_us));
    LD_RETURN_IF_ERROR(planted_.free_forks(forks));
    return row;
  }

  const RandomModelSpec& spec_;
  const runner::ModelConfig& config_;
  const runner::DeviceWeights& weights_;
  runner::SessionOptions options_;
  PlantedBatch planted_;
  cudaStream_t stream_;
};

}  // namespace

Status run_random_model_bench(const RandomModelSpec& spec, std::vector<RandomModelRow>* rows) {
  LD_ASSIGN_OR_RETURN(const runner::ModelConfig config, random_model_config(spec.model));
  const cuda::DeviceGuard guard(spec.device.device_idx);
  LD_RETURN_IF_ERROR(guard.status());
  cudaStream_t raw_stream = nullptr;
  LD_RETURN_IF_ERROR(cuda_status(cudaStreamCreate(&raw_stream), "cudaStreamCreate"));
  const Stream stream(raw_stream);
  LD_ASSIGN_OR_RETURN(const runner::DeviceWeights weights,
                      runner::random_weights(config, spec.device, 1));
  for (const int64_t depth : spec.depths) {
    for (const int32_t batch : spec.batches) {
      for (const Method method : spec.methods) {
        runner::SessionOptions options;
        options.method = method;
        options.ffd = spec.ffd;
        options.context_len = depth + std::max(spec.num_steps, kWarmUpSteps) + 1;
        options.kv_dtype = DType::kBF16;
        options.device = spec.device;
        LD_ASSIGN_OR_RETURN(PlantedBatch planted,
                            PlantedBatch::create(config, options, batch, depth, stream.get()));
        PlantedRuns runs(spec, config, weights, options, std::move(planted), stream.get());
        for (const runner::GraphMode graph : spec.graphs) {
          LD_ASSIGN_OR_RETURN(RandomModelRow row, runs.measure(batch, depth, graph));
          spec.progress(fmt::format("{} {} d{} batch {}: {:.1f} tok/s", spec.model,
                                    method == Method::kFfd ? "ffd" : "dense", depth, batch,
                                    row.tok_s[0]));
          rows->push_back(std::move(row));
        }
      }
    }
  }
  return Status();
}

}  // namespace longdecode::gpu_bench
