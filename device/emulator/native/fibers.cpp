// Fibers: a stack for each CUDA thread and the switch between them. On x86-64 a switch saves six registers (about
// 10 ns); elsewhere, or with EMU_UCONTEXT, it is swapcontext.
#include <sys/mman.h>

#include "core.h"

#if !defined(__x86_64__) && !defined(EMU_UCONTEXT)
#define EMU_UCONTEXT 1
#endif
#ifdef EMU_UCONTEXT
#include <ucontext.h>
#endif

namespace emu {

Fiber* current = nullptr;
BlockView* block = nullptr;
State state;

namespace {

u8* stacks = nullptr;  // MAX_FIBERS stacks, each with an inaccessible lowest page
u32 protected_stacks = 0;

}  // namespace

bool prepare_stacks(u32 count) {
  if (!stacks) {
    void* whole = mmap(nullptr, MAX_FIBERS * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (whole == MAP_FAILED) return false;
    stacks = (u8*)whole;
  }
  for (; protected_stacks < count; protected_stacks++)
    if (mprotect(stacks + protected_stacks * STACK_BYTES, PAGE, PROT_NONE)) return false;
  return true;
}

bool on_fiber_stack(const u8* address, u32* thread) {
  if (!stacks || address < stacks || address >= stacks + MAX_FIBERS * STACK_BYTES) return false;
  *thread = (u32)((address - stacks) / STACK_BYTES) % state.thread_count;
  return true;
}

// Whether the running thread has left its stack: it met the page below, or its stack pointer (null where unknown) has
// leapt past that page, in which case the address may be anything's.
bool stack_ran_out(const u8* address, const u8* stack_pointer) {
  const u8* lowest = stacks + me()->fiber * STACK_BYTES;
  if (address >= lowest && address < lowest + PAGE) return true;
  return stack_pointer && (stack_pointer < lowest + PAGE || stack_pointer > lowest + STACK_BYTES);
}

#ifdef EMU_UCONTEXT

namespace {
ucontext_t contexts[MAX_FIBERS], launcher_context;
}

void prepare_fiber(Thread& thread, void (*body)()) {
  ucontext_t& context = contexts[thread.fiber];
  getcontext(&context);
  context.uc_stack.ss_sp = stacks + thread.fiber * STACK_BYTES + PAGE;
  context.uc_stack.ss_size = STACK_BYTES - PAGE;
  context.uc_link = nullptr;
  makecontext(&context, body, 0);
}

void switch_to(Thread* next) {
  ucontext_t& from = contexts[me()->fiber];
  if (next->home != state.home) enter_block(*next->home);
  current = next;
  state.counters.switches++;
  swapcontext(&from, &contexts[next->fiber]);
}

void leave_to_launcher() {
  current = nullptr;
  setcontext(&launcher_context);
  __builtin_unreachable();
}

void run_from_launcher(Thread* first) {
  enter_block(*first->home);
  current = first;
  swapcontext(&launcher_context, &contexts[first->fiber]);
}

#else

// emu_switch(save, load): pushes the callee-saved registers, stores the stack pointer in *save, continues at load.
asm(R"(
.text
.p2align 4
.globl emu_switch
.hidden emu_switch
.type emu_switch,@function
emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emu_switch,.-emu_switch
)");
extern "C" __attribute__((visibility("hidden"))) void emu_switch(void** save, void* load);

namespace {
void* launcher_stack_pointer = nullptr;
}

void prepare_fiber(Thread& thread, void (*body)()) {
  // Tops are staggered: stacks at equal offsets within pages would fight for the same cache sets.
  const u64 stagger = (thread.fiber * 7 % 64) * 64;
  u8* top = stacks + (thread.fiber + 1) * STACK_BYTES - stagger;
  void** sp = (void**)((uintptr_t)top & ~(uintptr_t)15);
  *--sp = nullptr;  // the return address of body, which never returns
  *--sp = (void*)body;
  for (int i = 0; i < 6; i++) *--sp = nullptr;
  thread.stack_pointer = sp;
}

void switch_to(Thread* next) {
  Thread* from = me();
  if (next->home != state.home) enter_block(*next->home);
  current = next;
  state.counters.switches++;
  emu_switch(&from->stack_pointer, next->stack_pointer);
}

void leave_to_launcher() {
  void* abandoned;
  current = nullptr;
  emu_switch(&abandoned, launcher_stack_pointer);
  __builtin_unreachable();
}

void run_from_launcher(Thread* first) {
  enter_block(*first->home);
  current = first;
  emu_switch(&launcher_stack_pointer, first->stack_pointer);
}

#endif

}  // namespace emu
