#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/status_macros.h"
#include "build_info.h"
#include "commands.h"
#include "output.h"

namespace longdecode::tool {
namespace {

using Json = nlohmann::ordered_json;

struct InfoOptions {
  std::string json_path;
};

Json build_json() {
  const BuildInfo build = build_info();
  return {{"commit", build.commit},
          {"compiler", build.compiler},
          {"optimized", build.optimized},
          {"sanitizers", build.sanitizers}};
}

Status run_info(const InfoOptions& options) {
  LD_ASSIGN_OR_RETURN(JsonOutput output, JsonOutput::open(options.json_path));
  const Json info = {{"version", build_info().version}, {"build", build_json()}};
  if (!output.is_stdout()) {
    LD_RETURN_IF_ERROR(write_stdout(fmt::format("longdecode {}\n", build_info().version)));
  }
  return output.write(info.dump(2));
}

}  // namespace

void add_info(CLI::App& app, Status& outcome) {
  CLI::App* info = app.add_subcommand("info", "Show what this build and this machine can do");
  auto options = std::make_shared<InfoOptions>();
  info->add_option("--json", options->json_path, "Write JSON to FILE, or to stdout for -")
      ->type_name("FILE");
  info->callback([options, &outcome] { outcome = run_info(*options); });
}

}  // namespace longdecode::tool
