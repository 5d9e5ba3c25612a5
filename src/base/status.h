// How a call fails: the sentence is kept for the calling thread, the log callback hears it, the caller gets -1.
#pragma once

namespace obn {

// Stores the sentence and returns -1, so that a check reads `if (bad) return fail("output: expected …; got …", …);`.
// A sentence names the argument by its Python name, then what was expected, then what came. Never allocates.
[[gnu::format(printf, 1, 2)]] int fail(const char* format, ...);

// "NAME: not implemented"; returns -1.
int not_implemented(const char* function);

}  // namespace obn
