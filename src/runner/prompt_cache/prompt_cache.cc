// Writing. prompt_cache_reader.cc reads.
#include "runner/prompt_cache/prompt_cache.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "runner/output_file.h"
#include "runner/prompt_cache/cache_memory.h"
#include "runner/prompt_cache/layout.h"
#include "runner/prompt_cache/xxh64.h"

namespace longdecode::runner {
namespace {

// Counts what is written into its checksum; the first error is that of finish().
class NewFile {
 public:
  explicit NewFile(OutputFile file) : file_(std::move(file)) {}

  void write(const void* data, int64_t num_bytes) {
    if (error_ != 0 || num_bytes == 0) return;
    const auto count = static_cast<size_t>(num_bytes);
    hash_.update({static_cast<const uint8_t*>(data), count});
    if (std::fwrite(data, 1, count, file_.stream()) != count) error_ = errno;
  }
  Status finish() {
    const uint64_t checksum = hash_.digest();
    write(&checksum, kChecksumBytes);
    if (error_ == 0) return file_.commit();
    return make_status(StatusCode::kUnavailable, "cannot be written: {}", std::strerror(error_));
  }

 private:
  OutputFile file_;
  Xxh64 hash_;
  int error_ = 0;
};

PromptCacheHeader make_header(uint64_t model_hash, std::span<const RestorePoint> points,
                              const Session& session) {
  const KvCacheDesc& desc = session.cache().desc();
  PromptCacheHeader header;
  std::copy_n(kPromptCacheMagic, sizeof(header.magic), header.magic);
  header.version = kPromptCacheVersion;
  header.num_points = static_cast<int32_t>(points.size());
  header.model_hash = model_hash;
  header.num_tokens = session.num_tokens();
  header.op = static_cast<int32_t>(desc.format.op);
  header.keys = static_cast<int32_t>(desc.format.keys);
  header.dtype = static_cast<int32_t>(desc.format.dtype);
  header.num_kv_heads = desc.format.num_kv_heads;
  header.key_dim = desc.format.key_dim;
  header.value_dim = desc.format.value_dim;
  header.page_size = desc.format.page_size;
  header.num_layers = desc.num_layers;
  header.vocab_size = static_cast<int32_t>(session.logits().size());
  for (size_t i = 0; i < points.size(); ++i) header.point_tokens[i] = points[i].num_tokens;
  return header;
}

Status check_points(std::span<const RestorePoint> points, const Session& session) {
  if (points.empty() || points.size() > size_t{kMaxRestorePoints}) {
    return invalid_argument("points has {} entries; 1 to {} are allowed", points.size(),
                            kMaxRestorePoints);
  }
  int64_t last = 0;
  for (const RestorePoint& point : points) {
    if (point.num_tokens <= last || point.num_tokens > session.num_tokens()) {
      return invalid_argument("points has the length {} after {}; ascending up to {} is needed",
                              point.num_tokens, last, session.num_tokens());
    }
    last = point.num_tokens;
  }
  return Status();
}

}  // namespace

uint64_t prompt_cache_checksum(std::span<const uint8_t> bytes) { return Xxh64::hash(bytes); }

Status save_prompt_cache(const std::string& path, uint64_t model_hash,
                         std::span<const int32_t> tokens, std::span<const RestorePoint> points,
                         const Session& session) {
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  if (num_tokens != session.num_tokens() || num_tokens == 0) {
    return invalid_argument("tokens has {} entries; the session has {}, 1 or more are needed",
                            num_tokens, session.num_tokens());
  }
  LD_RETURN_IF_ERROR(check_points(points, session));
  const PromptCacheHeader header = make_header(model_hash, points, session);
  const std::string context = fmt::format("prompt cache {}: ", path);
  Result<OutputFile> output = OutputFile::create(path);
  if (!output.ok()) {
    return make_status(StatusCode::kUnavailable, "{}{}", context, output.status().message());
  }
  NewFile file(std::move(output).value());
  file.write(&header, sizeof(header));
  file.write(tokens.data(), num_tokens * 4);
  for (const RestorePoint& point : points) {
    file.write(point.logits.data(), static_cast<int64_t>(point.logits.size()) * 4);
    file.write(point.rings.data(), static_cast<int64_t>(point.rings.size()));
  }
  LD_ASSIGN_OR_RETURN(const CacheMemory memory,
                      CacheMemory::open(session.cache(), session.options().device));
  std::vector<uint8_t> bytes;
  for (const MemoryBlock& block : memory.page_blocks(num_tokens, num_tokens)) {
    bytes.resize(static_cast<size_t>(block.stored_bytes));
    LD_RETURN_IF_ERROR(memory.read(block, bytes.data()));
    file.write(bytes.data(), block.stored_bytes);
  }
  return in_context(context, file.finish());
}

}  // namespace longdecode::runner
