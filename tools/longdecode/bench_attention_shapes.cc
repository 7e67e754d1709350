#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>

#include "base/errors.h"
#include "base/status_macros.h"
#include "bench_attention.h"
#include "json_input.h"
#include "option_checks.h"
#include "output.h"

namespace longdecode::tool {
namespace {

using Json = InputJson;

// A value of a shapes file as T; false when it is of another kind or does not fit.
template <typename T>
bool convert(const Json& json, T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    if (!json.is_string()) return false;
    value = json.get<std::string>();
  } else if constexpr (std::is_same_v<T, bool>) {
    if (!json.is_boolean()) return false;
    value = json.get<bool>();
  } else if constexpr (std::is_floating_point_v<T>) {
    if (!json.is_number()) return false;
    const auto number = json.get<long double>();
    value = static_cast<T>(number);
    return std::isfinite(value) && (value != T{0} || number == 0.0L);
  } else {
    constexpr int64_t kMost = std::numeric_limits<T>::max();
    if (!json.is_number_integer()) return false;
    if (json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{kMost}) return false;
    if (json.get<int64_t>() < std::numeric_limits<T>::min()) return false;
    value = json.get<T>();
  }
  return true;
}

template <typename T>
bool convert(const Json& json, std::vector<T>& values) {
  values.clear();
  for (const Json& item : json.is_array() ? json : Json::array({json})) {
    T value{};
    if (!convert(item, value)) return false;
    values.push_back(value);
  }
  return !values.empty();
}

// For a message; nlohmann's dump() cannot write wide numbers.
std::string text_of(const Json& json) {
  if (json.is_number_float()) return fmt::format("{}", json.get<long double>());
  if (!json.is_array()) return nlohmann::json(json).dump();
  std::vector<std::string> items;
  for (const Json& item : json) items.push_back(text_of(item));
  return fmt::format("[{}]", fmt::join(items, ","));
}

// Reads the members one by one and knows which keys they took.
class ObjectReader {
 public:
  explicit ObjectReader(const Json& object) : object_(object) {}

  template <typename T>
  void read(const char* key, T& value) {
    const auto found = object_.find(key);
    if (found == object_.end()) return;
    if (!convert(*found, value) && error_.empty()) error_ = key;
    known_.push_back(key);
  }

  Status finish() const {
    if (!error_.empty()) {
      return invalid_argument("\"{}\" is {}: of the wrong kind or out of range", error_,
                              shown(text_of(object_.at(error_))));
    }
    for (const auto& item : object_.items()) {
      if (std::find(known_.begin(), known_.end(), item.key()) == known_.end()) {
        return invalid_argument("\"{}\" is no option of a shape", shown(item.key()));
      }
    }
    return {};
  }

 private:
  const Json& object_;
  std::vector<std::string> known_;
  std::string error_;
};

Status read_shape(const Json& object, ShapeRequest& shape) {
  if (!object.is_object()) return invalid_argument("is not an object");
  ObjectReader reader(object);
  reader.read("op", shape.op);
  reader.read("method", shape.method);
  reader.read("batch", shape.batch);
  reader.read("query_len", shape.query_len);
  reader.read("kv_len", shape.kv_len);
  reader.read("num_q_heads", shape.num_q_heads);
  reader.read("num_kv_heads", shape.num_kv_heads);
  reader.read("head_dim", shape.head_dim);
  reader.read("dtype", shape.dtype);
  reader.read("page_size", shape.page_size);
  reader.read("kept", shape.kept);
  reader.read("workload", shape.workload);
  reader.read("dump", shape.dump);
  reader.read("layer", shape.layer);
  reader.read("near_threshold", shape.near_threshold);
  reader.read("delta", shape.delta);
  reader.read("margin_sigmas", shape.margin_sigmas);
  reader.read("certified", shape.certified);
  reader.read("sink_tokens", shape.sink_tokens);
  reader.read("recent_tokens", shape.recent_tokens);
  reader.read("seed", shape.seed);
  LD_RETURN_IF_ERROR(reader.finish());
  if (!object.contains("dump")) return {};
  return check_dump(shape);
}

Result<DType> parse_dtype(const std::string& name) {
  LD_RETURN_IF_ERROR(check_choice("--dtype", name, {"bf16", "f16", "f32"}));
  if (name == "bf16") return DType::kBF16;
  return name == "f16" ? DType::kF16 : DType::kF32;
}

Result<bench::WorkloadKind> parse_workload(const ShapeRequest& request) {
  LD_RETURN_IF_ERROR(
      check_choice("--workload", request.workload, {"planted", "clustered", "dump"}));
  if (request.workload == "planted") return bench::WorkloadKind::kPlanted;
  if (request.workload == "clustered") return bench::WorkloadKind::kClustered;
  if (request.dump.empty()) return invalid_argument("--workload is dump, and --dump is empty");
  if (request.op != "gqa") {
    return invalid_argument("--op is {}; allowed with --workload dump: gqa", request.op);
  }
  return bench::WorkloadKind::kDump;
}

Status parse_methods(const ShapeRequest& request, std::vector<Method>& methods) {
  for (const std::string& name : request.method) {
    LD_RETURN_IF_ERROR(check_choice("--method", name, {"dense", "ffd"}));
    const Method method = name == "ffd" ? Method::kFfd : Method::kDense;
    if (std::find(methods.begin(), methods.end(), method) != methods.end()) continue;
    if (request.op == "mla" && method == Method::kFfd) {
      if (request.method.size() == 1) {
        return invalid_argument(
            "--method is ffd with --op mla, whose cache has no 2-bit plane; allowed: dense");
      }
      print_note("the mla cache has no 2-bit plane: method ffd left out");
      continue;
    }
    if (method == Method::kFfd && request.page_size != 64 && request.page_size != 128) {
      return invalid_argument("--page-size is {}; allowed with --method ffd: 64, 128",
                              request.page_size);
    }
    methods.push_back(method);
  }
  return {};
}

}  // namespace

Status check_dump(const ShapeRequest& request) {
  if (request.dump.empty() || request.workload == "dump") return {};
  return invalid_argument("--workload is {}; allowed with --dump {}: dump", request.workload,
                          request.dump);
}

Status expand(const ShapeRequest& request, std::vector<bench::ShapeSpec>& shapes) {
  bench::ShapeSpec shape;
  LD_RETURN_IF_ERROR(check_choice("--op", request.op, {"gqa", "mla"}));
  shape.op = request.op == "mla" ? Op::kMla : Op::kGqa;
  shape.methods.clear();
  LD_RETURN_IF_ERROR(parse_methods(request, shape.methods));
  LD_ASSIGN_OR_RETURN(shape.dtype, parse_dtype(request.dtype));
  LD_ASSIGN_OR_RETURN(shape.workload, parse_workload(request));
  shape.kept = request.kept;
  shape.num_q_heads = request.num_q_heads;
  shape.num_kv_heads = request.num_kv_heads;
  shape.head_dim = request.head_dim;
  shape.page_size = request.page_size;
  shape.near_threshold = request.near_threshold;
  LD_RETURN_IF_ERROR(check_non_negative("--delta", request.delta, true));
  for (const float margin : request.margin_sigmas) {
    LD_RETURN_IF_ERROR(check_non_negative("--margin-sigmas", margin, false));
  }
  shape.margin_sigmas = request.margin_sigmas;
  shape.ffd = {request.delta, request.margin_sigmas.front(), request.certified, request.sink_tokens,
               request.recent_tokens};
  if (request.seed < 0) {
    return invalid_argument("--seed is {}; allowed: 0 and more", request.seed);
  }
  shape.seed = static_cast<uint64_t>(request.seed);
  if (shape.workload == bench::WorkloadKind::kDump) {
    LD_ASSIGN_OR_RETURN(shape.sample, read_dump(request.dump, request.layer));
    shape.num_q_heads = shape.sample->num_q_heads;
    shape.num_kv_heads = shape.sample->num_kv_heads;
    shape.head_dim = shape.sample->head_dim;
  }
  for (const int32_t batch : request.batch) {
    for (const int32_t query_len : request.query_len) {
      for (const int64_t kv_len : request.kv_len) {
        shape.batch = batch;
        shape.query_len = query_len;
        shape.kv_len = kv_len;
        shapes.push_back(shape);
      }
    }
  }
  return {};
}

Result<std::vector<ShapeRequest>> read_shapes_file(const std::string& path,
                                                   const ShapeRequest& defaults) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return invalid_argument("--shapes {}: is a directory", path);
  }
  std::ifstream file(path);
  if (!file) return not_found("--shapes {}: cannot be read: {}", path, std::strerror(errno));
  const Result<Json> parsed = parse_json(file);
  if (!parsed.ok()) return invalid_argument("--shapes {}: {}", path, parsed.status().message());
  const Json& json = *parsed;
  if (!json.is_array() || json.empty()) {
    return invalid_argument("--shapes {}: is not an array of shapes", path);
  }
  std::vector<ShapeRequest> requests;
  for (const Json& object : json) {
    requests.push_back(defaults);
    if (const Status status = read_shape(object, requests.back()); !status.ok()) {
      return invalid_argument("--shapes {}: shape {}: {}", path, requests.size() - 1,
                              status.message());
    }
  }
  return requests;
}

}  // namespace longdecode::tool
