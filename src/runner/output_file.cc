#include "runner/output_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/errors.h"
#include "base/status_macros.h"

namespace longdecode::runner {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kNewFileMode = 0666;  // less the umask
constexpr int kMaxNames = 1000;

Status cannot_be_written() {
  return invalid_argument("cannot be written: {}", std::strerror(errno));
}

bool lies_in_proc(const fs::path& place) {
  struct statfs facts = {};
  const fs::path folder = place.has_parent_path() ? place.parent_path() : fs::path(".");
  return statfs(folder.c_str(), &facts) == 0 && facts.f_type == PROC_SUPER_MAGIC;
}

// While one lives, what would end the process waits: a name given to a file is taken back first.
class SignalPause {
 public:
  SignalPause() {
    pending_ = 0;
    struct sigaction pause = {};
    pause.sa_handler = [](int signal) { pending_ = signal; };
    for (size_t i = 0; i < kSignals.size(); ++i) {
      sigaction(kSignals[i], nullptr, &before_[i]);
      if (before_[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &pause, nullptr);
    }
  }
  ~SignalPause() {
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
    if (pending_ != 0) raise(pending_);
  }
  SignalPause(const SignalPause&) = delete;
  SignalPause& operator=(const SignalPause&) = delete;

 private:
  static constexpr std::array<int, 4> kSignals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
  static inline volatile sig_atomic_t pending_ = 0;
  std::array<struct sigaction, 4> before_ = {};
};

// Calls give(name) with names in the folder until one was free; "" when it fails otherwise. A name
// is short whatever the target's is, and `give` must not follow a link that has it.
template <typename Give>
fs::path with_new_name(const fs::path& folder, const Give& give) {
  for (int i = 0; i < kMaxNames; ++i) {
    const fs::path name = folder / fmt::format(".longdecode-{}-{}", getpid(), i);
    if (give(name)) return name;
    if (errno != EEXIST) break;
  }
  return {};
}

// The name of a new file, and its descriptor to `file`, or "" and -1.
fs::path create_new(const fs::path& folder, int& file) {
  file = -1;
  return with_new_name(folder, [&file](const fs::path& name) {
    file = open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, kNewFileMode);
    return file >= 0;
  });
}

// A file in the folder that has no name.
int open_nameless(const fs::path& folder) {
  int file = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, kNewFileMode);
  if (file >= 0) return file;
  const SignalPause pause;
  const fs::path name = create_new(folder, file);
  if (!name.empty()) unlink(name.c_str());
  return file;
}

bool copy_all(int from, int to) {
  std::vector<char> block(1 << 20);
  for (off_t at = 0;;) {
    const ssize_t count = pread(from, block.data(), block.size(), at);
    if (count <= 0) return count == 0;
    for (ssize_t done = 0; done < count;) {
      const ssize_t written =
          pwrite(to, block.data() + done, static_cast<size_t>(count - done), at);
      if (written < 0) return false;
      done += written;
      at += written;
    }
  }
}

// As the file at `target`; the owner only where that is permitted.
void copy_mode(const fs::path& target, int file) {
  struct stat facts = {};
  if (stat(target.c_str(), &facts) != 0) return;
  if (fchown(file, facts.st_uid, facts.st_gid) != 0) {
    [[maybe_unused]] const int group_only = fchown(file, static_cast<uid_t>(-1), facts.st_gid);
  }
  fchmod(file, facts.st_mode & 07777);
}

// Whether a rename in its folder may replace the file: not a mount, nor another's in a sticky one.
bool may_be_renamed_over(const fs::path& target, const struct stat& facts) {
  struct statx more = {};
  const bool known = statx(AT_FDCWD, target.c_str(), AT_SYMLINK_NOFOLLOW, 0, &more) == 0;
  if (known && (more.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0) return false;
  const fs::path folder = target.parent_path();
  struct stat around = {};
  if (access(folder.c_str(), W_OK | X_OK) != 0) return false;
  if (stat(folder.c_str(), &around) != 0 || (around.st_mode & S_ISVTX) == 0) return true;
  const uid_t self = geteuid();
  return self == 0 || self == facts.st_uid || self == around.st_uid;
}

}  // namespace

fs::path link_target(const std::string& path) {
  constexpr int kMaxLinks = 40;  // as the kernel; a ring of links ends here and cannot be written
  std::error_code error;
  fs::path place = path;
  for (int i = 0; i < kMaxLinks && fs::is_symlink(place, error) && !lies_in_proc(place); ++i) {
    place = place.parent_path() / fs::read_symlink(place, error);
  }
  const fs::path folder = fs::canonical(fs::absolute(place, error).parent_path(), error);
  return error ? place : folder / place.filename();
}

Result<OutputFile> OutputFile::create(const std::string& path) {
  OutputFile file;
  file.target_ = link_target(path);
  LD_RETURN_IF_ERROR(file.check_target());
  LD_RETURN_IF_ERROR(file.open_stream());
  return file;
}

Status OutputFile::check_target() {
  struct stat facts = {};
  if (lies_in_proc(target_)) return invalid_argument("is no regular file: it leads into /proc");
  if (lstat(target_.c_str(), &facts) != 0) {
    return errno == ENOENT || errno == ENOTDIR ? Status() : cannot_be_written();
  }
  if (S_ISDIR(facts.st_mode)) return invalid_argument("is a directory");
  if (S_ISLNK(facts.st_mode)) {
    errno = ELOOP;
    return cannot_be_written();
  }
  if (access(target_.c_str(), W_OK) != 0) return cannot_be_written();
  if (!S_ISREG(facts.st_mode)) return invalid_argument("is no regular file");
  exists_ = true;
  replaceable_ = may_be_renamed_over(target_, facts);
  return {};
}

Status OutputFile::open_stream() {
  const int descriptor = open_nameless(target_.parent_path());
  if (descriptor >= 0) {
    stream_.reset(fdopen(descriptor, "wb+"));
  } else if (exists_ && !replaceable_) {
    stream_.reset(std::tmpfile());
  }
  return stream_ == nullptr ? cannot_be_written() : Status();
}

Status OutputFile::commit() {
  bool done = std::fflush(stream()) == 0 && std::ferror(stream()) == 0;
  if (done) {
    const SignalPause pause;
    done = replaceable_ && replace();
    const bool denied = !replaceable_ || errno == EBUSY || errno == EPERM || errno == EACCES;
    if (!done && exists_ && denied) done = overwrite();
  }
  const int error = errno;
  stream_.reset();
  if (done) return {};
  return make_status(StatusCode::kUnavailable, "cannot be written: {}", std::strerror(error));
}

bool OutputFile::replace() const {
  const int file = fileno(stream());
  if (exists_) copy_mode(target_, file);
  const std::string self = fmt::format("/proc/self/fd/{}", file);
  const fs::path folder = target_.parent_path();
  fs::path name = with_new_name(folder, [&](const fs::path& path) {
    return linkat(AT_FDCWD, self.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0;
  });
  bool done = !name.empty();
  if (!done) {  // a file system that names no nameless file
    int copy = -1;
    name = create_new(folder, copy);
    if (name.empty()) return false;
    if (exists_) copy_mode(target_, copy);
    done = copy_all(file, copy);
    done = close(copy) == 0 && done;
  }
  done = done && std::rename(name.c_str(), target_.c_str()) == 0;
  const int error = errno;
  if (!done) unlink(name.c_str());
  errno = error;
  return done;
}

bool OutputFile::overwrite() const {
  const int file = fileno(stream());
  struct stat from = {};
  struct stat before = {};
  const int to = open(target_.c_str(), O_WRONLY | O_CLOEXEC);
  if (to < 0) return false;
  bool done = fstat(file, &from) == 0 && fstat(to, &before) == 0;
  // A full disk is found before anything of the file is overwritten.
  const bool grows = done && from.st_size > before.st_size;
  const int lack = grows ? posix_fallocate(to, 0, from.st_size) : 0;
  if (lack == ENOSPC || lack == EFBIG || lack == EDQUOT) {
    [[maybe_unused]] const int restored = ftruncate(to, before.st_size);
    errno = lack;
    done = false;
  }
  done = done && copy_all(file, to) && ftruncate(to, from.st_size) == 0;
  return close(to) == 0 && done;
}

}  // namespace longdecode::runner
