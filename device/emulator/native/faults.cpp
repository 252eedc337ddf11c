// How a kernel's faults become reports: checks of the core, traps of the compiler's sanitizers, and signals.
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>

#include "core.h"

namespace emu {

void note_fault(const char* kind, const std::string& message) {
  if (!state.fault_kind.empty()) return;
  state.fault_kind = kind;
  state.fault_message = message;
}

// Ends the launch with "block (x,y,z) thread t: message". The stack is left behind as it is: what a caller's destructors
// would have freed leaks, once a fault.
void fail(const char* kind, const char* format, ...) {
  char text[700];
  int n = snprintf(text, sizeof text, "block (%u,%u,%u) thread %u: ", state.block_idx.x, state.block_idx.y, state.block_idx.z, current->index);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text + n, sizeof text - (size_t)n, format, arguments);
  va_end(arguments);
  note_fault(kind, text);
  leave_to_launcher();
}

void out_of_budget(int line) { fail("budget", "the work budget of the launch ran out in line %d: a runaway loop, or too large a sample", line); }

namespace {

const char* verb(Access access) { return access == GLOBAL_READ || access == SHARED_READ ? "reads" : "writes"; }

}  // namespace

void bad_shared_access(const void* p, u64 bytes, u64 alignment, Access access, int line) {
  const std::string place = describe_address((const u8*)p);
  if (shared_offset(p, bytes) < 0) fail("out_of_bounds", "line %d %s %llu bytes at %s", line, verb(access), bytes, place.c_str());
  fail("misaligned", "line %d %s %llu bytes at %s, which is not a multiple of %llu", line, verb(access), bytes, place.c_str(), alignment);
}

void bad_global_access(const void* p, u64 bytes, u64 alignment, Access access, int line) {
  const std::string place = describe_address((const u8*)p);
  for (u32 i = 0; i < state.span_count; i++) {
    const Span& s = state.spans[i];
    if (!inside(p, bytes, s.begin, s.bytes)) continue;
    if ((uintptr_t)p & (alignment - 1))
      fail("misaligned", "line %d %s %llu bytes at %s: the address is not a multiple of %llu", line, verb(access), bytes, place.c_str(), alignment);
    fail("out_of_bounds", "line %d writes %llu bytes at %s: it is an input, which kernels must not write", line, bytes, place.c_str());
  }
  fail("out_of_bounds", "line %d %s %llu bytes at %s", line, verb(access), bytes, place.c_str());
}

void observe(const void* p, u32 bytes, Access access, int line) {
  if (state.profile) profile_access(p, bytes, access, line);
  if (!state.race_checks) return;
  if (access == GLOBAL_WRITE) race_global_store(line);
  if (access == GLOBAL_READ) race_global_read(p, line);
  if (access >= SHARED_READ) race_access(shared_offset(p, bytes), bytes, access == SHARED_WRITE, line);
  if (access == SHARED_WRITE) proxy_write(shared_offset(p, bytes), bytes, line);
}

u32 atomic_increment(u32* p, u32 last, int line) {
  const bool observed = state.observed;
  state.observed = false;  // neither a load nor a store of data
  global_access(p, 4, 4, GLOBAL_WRITE, line);
  state.observed = observed;
  if (state.race_checks) race_publish(line);
  const u32 old = *p;
  *p = old >= last ? 0 : old + 1;
  return old;
}

// ---------------------------------------------------------------- signals: accesses that no hw:: function made
namespace {

constexpr int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
struct sigaction previous[4];
alignas(16) char signal_stack[64 << 10];
stack_t previous_stack;

const u8* stack_pointer_of(const void* context) {
#if defined(__x86_64__)
  return (const u8*)((const ucontext_t*)context)->uc_mcontext.gregs[REG_RSP];
#elif defined(__aarch64__)
  return (const u8*)((const ucontext_t*)context)->uc_mcontext.sp;
#else
  return nullptr;
#endif
}

void on_signal(int number, siginfo_t* info, void* context) {
  if (!current) {  // not in a kernel: the fault is the host program's own
    restore_signal_handlers();
    raise(number);
    return;
  }
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, number);
  pthread_sigmask(SIG_UNBLOCK, &one, nullptr);  // this handler is left for good
  if (number == SIGFPE) fail("crash", "an integer division by zero");
  if (number == SIGILL) fail("crash", "a trap, or the end of a function without a return");
  if (stack_ran_out((const u8*)info->si_addr, stack_pointer_of(context)))
    fail("out_of_bounds", "the local memory (stack) of the thread ran out: it has %llu bytes", STACK_BYTES - PAGE);
  if (info->si_code == SI_KERNEL)  // a protection fault, which has no address: a vector instruction off its alignment
    fail("misaligned", "a plain access (no hw:: call, hence no line) with a misaligned or impossible address");
  const std::string place = describe_address((const u8*)info->si_addr);
  fail("out_of_bounds", "a plain access (no hw:: call, hence no line) to %s", place.c_str());
}

}  // namespace

void install_signal_handlers() {
  stack_t stack{};
  stack.ss_sp = signal_stack;
  stack.ss_size = sizeof signal_stack;
  sigaltstack(&stack, &previous_stack);
  struct sigaction action{};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (int i = 0; i < 4; i++) sigaction(SIGNALS[i], &action, &previous[i]);
}

void restore_signal_handlers() {
  for (int i = 0; i < 4; i++) sigaction(SIGNALS[i], &previous[i], nullptr);
  sigaltstack(&previous_stack, nullptr);
}

}  // namespace emu

// ---------------------------------------------------------------- the compilers' bounds and alignment checks
// Kernels are compiled with -fsanitize=bounds,alignment and no runtime library: these are the handlers that such
// code calls (the interface of compiler-rt's ubsan_handlers.h; the data begins with the source location).
struct SourceLocation { const char* file; unsigned line, column; };

#define EMU_HANDLER extern "C" __attribute__((visibility("default")))

EMU_HANDLER void __ubsan_handle_out_of_bounds_abort(SourceLocation* where, uintptr_t index) {
  emu::fail("out_of_bounds", "line %u uses index %lld of an array, which is out of its bounds", where->line, (i64)index);
}

// clang's second look, where pointer arithmetic left a known object; it comes without a location.
EMU_HANDLER void __ubsan_handle_local_out_of_bounds_abort() {
  emu::fail("out_of_bounds", "an access beyond the end of a local array");
}

EMU_HANDLER void __ubsan_handle_type_mismatch_v1_abort(SourceLocation* where, uintptr_t address) {
  const std::string place = emu::describe_address((const u8*)address);
  emu::fail("misaligned", "line %u uses a misaligned pointer to %s", where->line, place.c_str());
}
