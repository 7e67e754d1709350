/* LONGDECODE_API marks what a shared library exports; everything else is hidden. C and C++. */
#ifndef LONGDECODE_EXPORT_H_
#define LONGDECODE_EXPORT_H_

#if defined(__GNUC__) || defined(__clang__)
#define LONGDECODE_API __attribute__((visibility("default")))
#else
#define LONGDECODE_API
#endif

#endif /* LONGDECODE_EXPORT_H_ */
