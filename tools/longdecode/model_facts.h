// What a GGUF file holds, for `longdecode info -m`.
#ifndef LONGDECODE_TOOLS_MODEL_FACTS_H_
#define LONGDECODE_TOOLS_MODEL_FACTS_H_

#include <nlohmann/json.hpp>
#include <string>

#include "longdecode/status.h"

namespace longdecode::tool {

// Loads the model as `generate` would, so that what it refuses is refused here.
Result<nlohmann::ordered_json> model_facts(const std::string& path);

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_MODEL_FACTS_H_
