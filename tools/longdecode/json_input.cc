#include "json_input.h"

#include <algorithm>
#include <istream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "option_checks.h"

namespace longdecode::tool {
namespace {

using Json = InputJson;

// Far beyond what is read here; destroying a value recurses once a level.
constexpr int kMaxDepth = 64;

// Told of every value as it is parsed; keeps none that is too deep.
class Limits {
 public:
  bool keep(int depth, Json::parse_event_t event, const Json& parsed) {
    using Event = Json::parse_event_t;
    if (event == Event::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      const bool is_new = depth > kMaxDepth || keys_[static_cast<size_t>(depth)].insert(key).second;
      if (!is_new && twice_.ok()) {
        twice_ = invalid_argument("has the key \"{}\" twice in an object", shown(key));
      }
    }
    if (event != Event::object_start && event != Event::array_start) return true;
    if (depth >= kMaxDepth) {
      too_deep_ = true;
      return false;
    }
    keys_[static_cast<size_t>(depth) + 1].clear();
    return true;
  }

  Status status() const {
    if (too_deep_) return invalid_argument("is nested deeper than {} levels", kMaxDepth);
    return twice_;
  }

 private:
  std::vector<std::set<std::string>> keys_{kMaxDepth + 1};  // of the open object at each depth
  bool too_deep_ = false;
  Status twice_;
};

template <typename... Input>
Result<Json> parse(Input&&... input) {
  Limits limits;
  const auto keep = [&limits](int depth, Json::parse_event_t event, Json& parsed) {
    return limits.keep(depth, event, parsed);
  };
  Json json;
  std::string problem;
  try {
    json = Json::parse(std::forward<Input>(input)..., keep);
  } catch (const Json::exception& error) {  // "[json.exception...] parse error at line 1, ..."
    const std::string text = error.what();
    problem = text.substr(std::min(text.find("] ") + 2, text.size()));
  }
  if (const Status status = limits.status(); !status.ok()) return status;
  if (!problem.empty()) return invalid_argument("is not JSON: {}", shown(problem));
  return json;
}

}  // namespace

Result<InputJson> parse_json(std::istream& text) { return parse(text); }

Result<InputJson> parse_json(std::span<const uint8_t> text) {
  return parse(text.data(), text.data() + text.size());
}

}  // namespace longdecode::tool
