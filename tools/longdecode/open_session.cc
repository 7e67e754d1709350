#include "open_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "base/errors.h"
#include "base/integer_math.h"
#include "base/status_macros.h"
#include "longdecode/attention.h"
#include "ops/backends.h"
#include "output.h"
#include "progress.h"

namespace longdecode::tool {
namespace {

// What the CPU may serve although the GPU does not.
bool is_of_the_device(StatusCode code) {
  return code == StatusCode::kUnavailable || code == StatusCode::kUnsupported ||
         code == StatusCode::kOutOfMemory;
}

// bench model opens a session for every method.
void print_note_once(const std::string& text) {
  static std::set<std::string> printed;
  if (printed.insert(text).second) print_note(text);
}

constexpr int64_t kMebibyte = 1 << 20;

// Pages for the longest sequences that can be in the cache at once.
void make_room(const BatchRoom& room, runner::SessionOptions& options) {
  if (room.lengths.empty()) return;
  options.max_batch =
      static_cast<int32_t>(std::min(static_cast<size_t>(room.parallel), room.lengths.size()));
  std::vector<int64_t> pages;
  for (const int64_t length : room.lengths) pages.push_back(ceil_div(length, options.page_size));
  std::sort(pages.begin(), pages.end(), std::greater<>());
  options.num_pages = std::accumulate(pages.begin(), pages.begin() + options.max_batch, int64_t{0});
}

Result<runner::Session> open_on_cuda(std::shared_ptr<const runner::Model> model,
                                     const SessionFlags& flags, runner::SessionOptions options,
                                     bool progress, const BatchRoom& room) {
  LD_ASSIGN_OR_RETURN(const DeviceInfo device, detect_device(DeviceType::kCuda));
  LD_RETURN_IF_ERROR(check_cuda_kv_type(flags));
  put_on_cuda(flags, device, options);
  make_room(room, options);
  const Progress bar("weights to the GPU", progress, "MiB");
  options.upload_progress = [bar](int64_t done, int64_t total) {
    bar((done + kMebibyte - 1) / kMebibyte, (total + kMebibyte - 1) / kMebibyte);
  };
  Result<runner::Session> session = runner::Session::create(std::move(model), options);
  if (session.status().code() != StatusCode::kOutOfMemory || options.max_batch == 1) return session;
  return out_of_memory("{}; a --parallel below {} needs less", session.status().message(),
                       options.max_batch);
}

}  // namespace

void note_cpu(const Status& why) {
  if (find_backend(DeviceType::kCuda).ok()) {
    print_note_once(fmt::format("on the CPU, because {}", why.message()));
  }
}

Result<runner::Session> open_session(std::shared_ptr<const runner::Model> model,
                                     const SessionFlags& flags, Method method, int64_t context_len,
                                     bool progress, const BatchRoom& room) {
  LD_ASSIGN_OR_RETURN(const runner::SessionOptions options,
                      session_options(flags, method, context_len));
  if (flags.device == "cuda") return open_on_cuda(std::move(model), flags, options, progress, room);
  if (flags.device == "auto" && find_backend(DeviceType::kCuda).ok()) {
    Result<runner::Session> session = open_on_cuda(model, flags, options, progress, room);
    if (session.ok() || !is_of_the_device(session.status().code())) return session;
    note_cpu(session.status());
  }
  for (const std::string& flag : flags.cuda_flags) {
    print_note_once(fmt::format("{} has no effect on the CPU", flag));
  }
  return runner::Session::create(std::move(model), options);
}

}  // namespace longdecode::tool
