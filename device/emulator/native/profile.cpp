// Counters of one block: for every line that loads or stores, requests of whole warps, and what they cost.
//
// Global memory moves in sectors of 32 bytes; `ideal` is the sectors that the distinct bytes would fill. Shared memory
// has 32 banks of 4 bytes: a request is served in passes over at most 128 bytes (32 lanes of 4 bytes, 16 of 8, 8 of 16),
// and a pass takes as many transactions as the most wanted bank has distinct words. (CUDA C++ Programming Guide, "Device
// memory accesses" and "Shared memory".)
//
// Requests are counted exactly; their cost is analysed for the first SAMPLES requests of each line and warp and scaled,
// since loops repeat. The n-th access of each lane at a line is taken as one request.
#include <algorithm>
#include <map>

#include "core.h"

namespace emu {

namespace {

constexpr u32 SAMPLES = 64;

struct Site {
  int access, line;
  u32 bytes;
  std::vector<u32> counts;     // accesses of each thread
  std::vector<u64> addresses;  // [sample][thread], 0 where the lane took no part
};
std::vector<Site> sites;
std::map<std::pair<int, int>, u32> site_of;  // (line, access) -> index
std::vector<SiteCount> results;

Site& site(int access, int line, u32 bytes) {
  auto [found, fresh] = site_of.try_emplace({line, access}, (u32)sites.size());
  if (fresh) sites.push_back({access, line, bytes, std::vector<u32>(state.thread_count), {}});
  return sites[found->second];
}

struct Cost { u64 transactions, ideal; };

Cost global_cost(const u64* lanes, u32 bytes) {
  std::vector<u64> sectors, starts;
  for (u32 lane = 0; lane < WARP; lane++) {
    if (!lanes[lane]) continue;
    starts.push_back(lanes[lane]);
    for (u64 s = lanes[lane] / 32; s <= (lanes[lane] + bytes - 1) / 32; s++) sectors.push_back(s);
  }
  std::sort(sectors.begin(), sectors.end());
  const auto end = std::unique(sectors.begin(), sectors.end());
  std::sort(starts.begin(), starts.end());  // lanes that read the same bytes need them once
  const u64 distinct = (u64)(std::unique(starts.begin(), starts.end()) - starts.begin());
  return {(u64)(end - sectors.begin()), (distinct * bytes + 31) / 32};
}

Cost shared_cost(const u64* lanes, u32 bytes) {
  const u32 per_pass = bytes <= 4 ? 32 : bytes <= 8 ? 16 : 8;
  Cost cost{0, 0};
  for (u32 first = 0; first < WARP; first += per_pass) {
    std::vector<u64> words;
    for (u32 lane = first; lane < first + per_pass; lane++)
      for (u64 word = lanes[lane] / 4; lanes[lane] && word <= (lanes[lane] + bytes - 1) / 4; word++) words.push_back(word);
    if (words.empty()) continue;
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    u64 wanted[32] = {}, most = 0;
    for (const u64 word : words) most = std::max(most, ++wanted[word % 32]);
    cost.transactions += most;
    cost.ideal++;
  }
  return cost;
}

}  // namespace

void profile_reset() { results.clear(); }
const std::vector<SiteCount>& profile_sites() { return results; }

void profile_begin_block() {
  sites.clear();
  site_of.clear();
}

void profile_access(const void* p, u32 bytes, Access access, int line) {
  Site& s = site(access, line, bytes);
  const u32 n = s.counts[current->index]++;
  if (n >= SAMPLES) return;
  if (s.addresses.size() <= (size_t)n * state.thread_count) s.addresses.resize((size_t)(n + 1) * state.thread_count);
  s.addresses[(size_t)n * state.thread_count + current->index] = (u64)(uintptr_t)p;
}

void profile_end_block() {
  for (const Site& s : sites) {
    SiteCount out{s.access, s.line, 0, 0, 0};
    u64 sampled = 0;
    for (u32 first = 0; first < state.thread_count; first += WARP) {
      const u32 lanes = std::min(WARP, state.thread_count - first);
      out.requests += *std::max_element(s.counts.begin() + first, s.counts.begin() + first + lanes);
      for (size_t n = 0; n * state.thread_count < s.addresses.size(); n++) {
        u64 addresses[WARP] = {};
        bool any = false;
        for (u32 lane = 0; lane < lanes; lane++) any |= (addresses[lane] = s.addresses[n * state.thread_count + first + lane]) != 0;
        if (!any) continue;
        const Cost cost = s.access <= GLOBAL_WRITE ? global_cost(addresses, s.bytes) : shared_cost(addresses, s.bytes);
        out.transactions += cost.transactions;
        out.ideal += cost.ideal;
        sampled++;
      }
    }
    if (sampled) {
      out.transactions = out.transactions * out.requests / sampled;
      out.ideal = out.ideal * out.requests / sampled;
    }
    results.push_back(out);
  }
}

}  // namespace emu
