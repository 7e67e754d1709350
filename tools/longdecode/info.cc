#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "build_info.h"
#include "commands.h"
#include "longdecode/attention.h"
#include "model_facts.h"
#include "output.h"
#include "output_flags.h"
#include "support.h"

namespace longdecode::tool {
namespace {

using Json = nlohmann::ordered_json;

struct InfoOptions {
  std::string model_path;
  std::string json_path;
};

Json build_json() {
  const BuildInfo build = build_info();
  return {{"commit", build.commit},
          {"compiler", build.compiler},
          {"optimized", build.optimized},
          {"sanitizers", build.sanitizers}};
}

// A backend of the library: its device, or why there is none.
Json backend_json(const char* name, DeviceType type) {
  const Result<DeviceInfo> device = detect_device(type);
  Json json = {{"name", name}, {"available", device.ok()}};
  if (!device.ok()) {
    json["reason"] = device.status().message();
    return json;
  }
  json["device"] = device->name;
  json["memory_bytes"] = device->memory_bytes;
  json["last_level_cache_bytes"] = device->last_level_cache_bytes;
  if (type == DeviceType::kCpu) {
    json["num_threads"] = device->num_threads;
    json["features"] = {{"avx512_vnni", device->has_avx512_vnni},
                        {"avx512_bf16", device->has_avx512_bf16},
                        {"amx_bf16", device->has_amx_bf16}};
  } else {
    json["compute_capability"] = device->compute_capability;
    json["num_sms"] = device->num_sms;
  }
  return json;
}

Json support_json(const SupportRow& row) {
  Json json = {
      {"device", row.device}, {"op", row.op}, {"method", row.method}, {"supported", row.supported}};
  if (!row.supported) {
    json["reason"] = row.reason;
    return json;
  }
  json["kernel"] = row.kernel;
  json["isa"] = row.isa;
  json["head_dims"] = row.head_dims;
  json["page_sizes"] = row.page_sizes;
  json["dtypes"] = row.dtypes;
  json["groups"] = row.groups;
  json["query_lens"] = row.query_lens;
  json["options"] = row.options;
  return json;
}

Json shape_json(const ShapeKernel& row) {
  Json json = {{"shape", row.shape}};
  if (row.kernel.empty()) {
    json["reason"] = row.reason;
  } else {
    json["kernel"] = row.kernel;
    json["isa"] = row.isa;
  }
  return json;
}

// "name: value" lines; objects and arrays indent what they hold.
void append_text(const Json& json, int32_t indent, std::string& text) {
  for (const auto& [key, value] : json.items()) {
    const std::string label(static_cast<size_t>(indent), ' ');
    const bool nested =
        !value.empty() && (value.is_object() || (value.is_array() && value[0].is_object()));
    if (json.is_array()) {
      append_text(value, indent, text);
      text += "\n";
    } else if (nested) {
      text += fmt::format("{}{}:\n", label, key);
      append_text(value, indent + 2, text);
    } else {
      const std::string shown = value.is_string() ? value.get<std::string>() : value.dump();
      text += fmt::format("{}{}: {}\n", label, key, shown);
    }
  }
}

std::string shapes_text(const std::vector<ShapeKernel>& rows) {
  std::string text = "kernels of some shapes on the cpu:\n";
  for (const ShapeKernel& row : rows) {
    text +=
        fmt::format("  {:<58} {}\n", row.shape,
                    row.kernel.empty() ? row.reason : fmt::format("{} {}", row.kernel, row.isa));
  }
  return text;
}

Status run_info(const InfoOptions& options) {
  LD_ASSIGN_OR_RETURN(const JsonOutput output,
                      JsonOutput::open(options.json_path, {options.model_path}));
  Json info = {{"version", build_info().version}, {"build", build_json()}};
  info["backends"] = {backend_json("cpu", DeviceType::kCpu),
                      backend_json("cuda", DeviceType::kCuda)};
  LD_ASSIGN_OR_RETURN(const DeviceInfo cpu, detect_device(DeviceType::kCpu));
  const std::vector<ShapeKernel> shapes = common_shapes(cpu);
  std::vector<SupportRow> support = support_matrix(cpu);
  if (const Result<DeviceInfo> cuda = detect_device(DeviceType::kCuda); cuda.ok()) {
    const std::vector<SupportRow> more = support_matrix(*cuda);
    support.insert(support.end(), more.begin(), more.end());
  }
  std::string text;
  append_text(info, 0, text);
  text += support_table(support) + "\n" + shapes_text(shapes);
  for (const ShapeKernel& row : shapes) info["kernels"].push_back(shape_json(row));
  for (const SupportRow& row : support) info["support"].push_back(support_json(row));
  if (!options.model_path.empty()) {
    LD_ASSIGN_OR_RETURN(info["model"], model_facts(options.model_path));
    text += "\n";
    append_text({{"model", info["model"]}}, 0, text);
  }
  if (!output.is_stdout()) LD_RETURN_IF_ERROR(write_stdout(text));
  return output.write(info.dump(2, ' ', false, Json::error_handler_t::replace));
}

}  // namespace

void add_info(CLI::App& app, Status& outcome) {
  CLI::App* info = app.add_subcommand("info", "Show what this build and this machine can do");
  auto options = std::make_shared<InfoOptions>();
  info->add_option("-m,--model", options->model_path, "Model, a GGUF file: its facts, too")
      ->type_name("FILE");
  add_json_flag(*info, options->json_path);
  info->footer("\nExamples:\n  longdecode info\n  longdecode info -m model.gguf --json -");
  info->callback([options, &outcome] { outcome = run_info(*options); });
}

}  // namespace longdecode::tool
