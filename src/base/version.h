/* base/version.h - the version, commit and date of this build, for --version, /version and every
 * result file. */
#ifndef ROSE_BASE_VERSION_H
#define ROSE_BASE_VERSION_H

const char *rose_version(void); /* "0.1.0" */
const char *rose_commit(void); /* 12 hex digits, then "-dirty" if the tree had changes; "unknown" */

const char *rose_commit_date(void); /* "2026-11-24", the date of the commit; "" if unknown */

#endif
