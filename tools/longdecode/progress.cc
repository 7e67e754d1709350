#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "output.h"

namespace longdecode::tool {

Progress::Progress(std::string task, bool forced, std::string unit)
    : task_(std::move(task)),
      unit_(std::move(unit)),
      terminal_(isatty(STDERR_FILENO) != 0),
      enabled_(forced || terminal_) {}

void Progress::operator()(int64_t done, int64_t total) const {
  if (!enabled_ || total < 1) return;
  const std::string counts = fmt::format("{}/{} {} ({}%)", done, total, unit_, 100 * done / total);
  if (!terminal_) {
    write_stderr(fmt::format("{} {}\n", task_, counts));
    return;
  }
  constexpr int64_t kBarWidth = 24;
  const auto filled = static_cast<size_t>(kBarWidth * done / total);
  const double rate = static_cast<double>(done) / watch_.seconds();
  std::string line = fmt::format("\r{} [{:<{}}] {} {:.0f} {}/s", task_, std::string(filled, '#'),
                                 kBarWidth, counts, rate, unit_ == "tokens" ? "tok" : unit_);
  if (done < total)
    line += fmt::format(", {:.0f} s left", static_cast<double>(total - done) / rate);
  // The escape clears what a longer line before this one has left.
  write_stderr(fmt::format("{}\x1b[K{}", line, done < total ? "" : "\n"));
}

}  // namespace longdecode::tool
