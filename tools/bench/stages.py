# SPDX-License-Identifier: GPL-2.0
"""Where the instructions of a message go, by function and by stage: makes a profile of what was counted in the guest.

    stages.py DIR KO     DIR has counted.json, counts.N (counter.c) and kallsyms (counting.py); KO is the module, with debug info

Writes DIR/profile.json, DIR/profile.md and DIR/profile.svg, and prints the second. Run by scripts/bench --profile, in the
build root. A block of code counts for the function that it begins in. Of ferroce that is the innermost function of its
sources, inlined or not, and the stage is told by its file; of everything else, by the function's name. First match wins.
"""

import bisect
import collections
import itertools
import json
import re
import subprocess
import sys

LONGEST = 25
"""So many functions are listed for each row; all are in profile.json."""

FILES = [
    ("doorbell", r"qp/(drive|company|lane)\.rs|verbs/post|posted\.rs"),
    ("WQE", r"qp/(fetch|sends)\.rs|ferroce/(queue|receives|uapi|fifo|sends)\.rs|roce/wqe|shared_memory"),
    ("CRC", r"crc\.rs|icrc|crc32"),
    ("header", r"roce/(wire|run|datagram)|qp/transmit\.rs|address\.rs|ip_header"),
    ("copy", r"qp/memory|umem"),
    ("lookup", r"ferroce/region|rcu_map|registry|id_pool"),
    ("skb", r"net/(train|rx|tx)\.rs"),
    ("IP", r"net/(route|flow|netdev)\.rs"),
    ("UDP, netfilter", r"udp_port|listener|net\.rs"),
    ("completion", r"completion|cqe\.rs|verbs/(cq|wc)\.rs"),
    ("timer", r"timer\.rs|rdma/time\.rs"),
    ("lock", r"sync/(spinlock|bh|percpu)|sync\.rs"),
    ("scheduler", r"sync/work"),
    ("state", r"roce/|ferroce/qp|inbound|receiver|counters|port\.rs|device\.rs"),
    ("uverbs, system call", r"verbs|udata"),
    ("state", r"."),
]
"""Stages by file of ferroce's sources."""

RXE = [
    ("CRC", r"icrc|crc"),
    ("doorbell", r"post_send|rxe_sched|run_task|do_task|do_work"),
    ("WQE", r"post_recv|wqe|queue|rxe_get_recv"),
    ("header", r"prepare|init_req|hdr|header|fill_packet"),
    ("copy", r"copy|mr_.*iova|advance_dma"),
    ("lookup", r"pool|lookup|elem|get_dev|get_av|mr_check|xa_"),
    ("UDP, netfilter", r"udp|xmit|send|rxe_rcv|loopback|route|encap"),
    ("completion", r"cq|completer|_comp|poll"),
    ("timer", r"timer"),
    ("state", r"."),
]
"""Stages by name, for functions of rxe."""

FUNCTIONS = [
    ("CRC", r"crc32|crc_|fpu|fpregs|pclmul|xsave|xrstor"),
    ("copy", r"memcpy|memmove|rep_movs|copy_(to|from)_(user|iter)|copy_user|skb_copy|copy_page|strncpy"),
    ("clear", r"memset|rep_stos|clear_page|clear_user"),
    ("lock", r"rcu|local_bh|spin_|_lock|_unlock|mutex|percpu_ref|refcount|kref|semaphore|rwsem|up_(read|write)|down_(read|write)"),
    ("completion", r"ib_uverbs_(comp|event)|uverbs_comp_|ib_uverbs_.*cq"),
    ("veth, softirq", r"veth|net_rx|passthru_features|napi|netif|softirq|__dev_queue|dev_hard_start|sch_direct|backlog|xmit|rps_|eth_(type|header)|gro_|"
                      r"skb_(gso|segment|mac_gso)|qdisc|pfifo|netdev|dev_(queue|forward|nit)|tasklet|consume_skb_irq|get_rps|tx_queue"),
    ("skb", r"skb|page_frag|page_pool|sock_(w|r|e)free|sock_def|csum"),
    ("UDP, netfilter", r"udp|nf_|xfrm|ipt_|nft_|conntrack|hook|tunnel|siphash"),
    ("IP", r"raw_local_deliver|^_*(ip|ipv4|ipv6|ip6|fib|rt|dst|neigh|inet|arp|route|icmp|find_exception)(_|\d|$)|fib_|dst_"),
    ("allocation", r"alloc|kfree|kmem|slab|slub|put_page|folio|obj_cgroup|memcg|vm_area|cache_free|lru_|rmqueue|free_(unref|frozen|page)|prep_new"),
    ("timer", r"timer|ktime|tick|clockevent|timekeeping|jiffies|tsc|clock|apic"),
    ("wake-up", r"wake|poll_wait|kill_fasync|swait|eventfd|ttwu|select_idle|select_task|woken"),
    ("scheduler", r"sched|switch|rq(_|$)|_task|task_|entity|pick_|load_avg|vruntime|deadline|queue|preempt|place_|pelt|cfs|runtime|work|cpuacct|"
                  r"psi|prepare_to_wait|finish_wait|kthread|cpu_util|tlb|mm_cid|resched|idle|cgroup|dl_|numa|update_(curr|se)|__calc|fair|"
                  r"record_times|rb_(insert|erase|next)|set_next|eevdf|_find_(next|first)_|find_bit|accumulate_sum|decay_load"),
    ("uverbs, system call", r"uverbs|^_*(ib|rdma)_|sys|entry|vfs|fdget|fput|__fget|rw_verify|fsnotify|read|write|file|poll|security|apparmor|bpf_lsm|"
                            r"srso|retbleed|return_thunk|usercopy|check_object|check_heap|check_stack|access_ok|exit_to_user|get_user|put_user|fd|audit|radix_tree|xa_|"
                            r"uapi|ksys|__x64|irqentry|signal|find_gid|idr_|tomoyo|xas_|memdup_user"),
    ("interrupt, page fault", r"irq|fault|exc_|trap|interrupt|error|mm_|vma|page|pte|pv_|native_"),
]
"""Stages by name, for functions of the kernel."""


def stage_of_function(name, module):
    return next((stage for stage, pattern in (RXE if module == "rdma_rxe" else FUNCTIONS) if re.search(pattern, name)), "other")


def stage_of_file(path):
    return next(stage for stage, pattern in FILES if re.search(pattern, path))


class Symbols:
    """Functions by address, of the kernel and its modules."""

    def __init__(self, directory, ko, module):
        self.module, self.ko = module, ko
        found = []
        with open(f"{directory}/kallsyms") as f:
            for line in f:
                address, kind, name, *of = line.split()
                if kind in "tTwW":
                    found.append((int(address, 16), name, of[0].strip("[]") if of else ""))
        found.sort()
        self.addresses = [a for a, _, _ in found]
        self.functions = [(name, of) for _, name, of in found]
        self.known = {}

    def function(self, address):
        """(name, module) at an address, "" for the kernel's own; None outside the kernel."""
        if address < 1 << 63:
            return None
        at = bisect.bisect_right(self.addresses, address) - 1
        return self.functions[at] if at >= 0 else ("?", "")

    def in_sources(self, addresses):
        """{address in ferroce: (function, file)}, by the debug info of the module."""
        lines = output(["addr2line", "-e", self.ko, "-j", ".text", "-a", "-i", "-f"], (f"{a - self.module:#x}" for a in addresses))
        frames = collections.defaultdict(list)
        at = None
        rest = iter(lines)
        for line in rest:
            if re.fullmatch(r"0x[0-9a-f]+", line):
                at = self.module + int(line, 16)
            else:
                frames[at].append((line, re.sub(r":(\d+|\?)( .*)?$", "", next(rest))))
        plain = demangled({name for frame in frames.values() for name, _ in frame})
        found = {}
        for address in addresses:
            # What is inlined from core or the kernel's crate counts for who uses it.
            ours = [(name, re.sub(r".*/drivers/infiniband/(sw/)?", "", path)) for name, path in frames[address] if "/drivers/infiniband/" in path]
            # Where only core's file is told, the path of the function tells ours.
            name, path = ours[0] if ours else (frames[address][-1][0], module_path(plain[frames[address][-1][0]]))
            found[address] = (short(plain[name]), path)
        return found


def output(argv, lines):
    return subprocess.run(argv, text=True, check=True, stdout=subprocess.PIPE, input="\n".join(lines) + "\n").stdout.splitlines()


def demangled(names):
    names = sorted(names)
    return dict(zip(names, (re.sub(r"\[[0-9a-f]+\]", "", n) for n in output(["c++filt", "-s", "rust"], names)), strict=True))


def module_path(name):
    """The file that a Rust function should be in, by its path."""
    return "/".join(itertools.takewhile(str.islower, re.findall(r"\w+", name)[:-1])) + ".rs"


def short(name):
    """A Rust name without types: the last two parts of its path. `<a::T as b::C>::f::<X>` is T::f."""
    name, kept, depth = re.sub(r"->|::\{[^}]*\}", "", name), "", 0
    # The type that a function belongs to stands in brackets at the front; what other brackets hold is left out.
    front = name.startswith("<")
    for char in name:
        depth += (char == "<") - (char == ">")
        if char not in "<>" and depth == int(front):
            kept += char
        elif char == ">" and depth == 0 and front:
            kept, front = kept.split(" as ")[0], False
    return "::".join(kept.strip(":").split("::")[-2:])


def counts(directory, number):
    """{address: instructions} of one file."""
    found = collections.Counter()
    with open(f"{directory}/counts.{number}") as f:
        for line in f:
            address, size, times = line.split()
            found[int(address, 16)] += int(size) * int(times)
    return found


def profiles(directory, ko):
    """For each row that was counted: stages and functions, in instructions per message."""
    with open(f"{directory}/counted.json") as f:
        counted = json.load(f)
    symbols = Symbols(directory, ko, counted["module"])
    made = []
    for row in counted["rows"]:
        costs = {address: n / row["messages"] for address, n in counts(directory, row["counts"]).items()}
        where = {address: symbols.function(address) for address in costs}
        ours = symbols.in_sources([a for a, f in where.items() if f and f[1] == "ferroce"])
        stages, functions = collections.Counter(), collections.Counter()
        for address, cost in costs.items():
            if where[address] is None:
                key = ("user", "programs and libraries", "")
            elif address in ours:
                name, path = ours[address]
                key = (stage_of_file(path), name, path)
            else:
                name, module = where[address]
                key = (stage_of_function(name, module), name, module)
            stages[key[0]] += cost
            functions[key] += cost
        made.append({**row, "stages": dict(stages.most_common()), "total": sum(stages.values()),
                     "functions": [(*key, cost) for key, cost in functions.most_common() if cost >= 0.5]})
    return made


def markdown(made):
    stages = list(dict.fromkeys(s for p in made for s in p["stages"]))
    lines = ["| instructions per message | " + " | ".join(f"{p['row']}: {p['kind']}" for p in made) + " |", "|---" * (len(made) + 1) + "|"]
    for stage in stages:
        lines.append(f"| {stage} | " + " | ".join(f"{p['stages'].get(stage, 0):,.0f}" for p in made) + " |")
    lines.append("| total | " + " | ".join(f"{p['total']:,.0f}" for p in made) + " |")
    for p in made:
        lines += ["", f"{p['row']}, {p['kind']}: the first {LONGEST} functions", "", "| function | stage | of | instructions |", "|---|---|---|---|"]
        lines += [f"| {name} | {stage} | {module or 'kernel'} | {cost:,.0f} |" for stage, name, module, cost in p["functions"][:LONGEST]]
    return "\n".join(lines) + "\n"


def plot(directory, made):
    """Stages on top of each other, a bar for each row and driver."""
    stages = list(dict.fromkeys(s for p in made for s in p["stages"]))
    rows = "\n".join(f'"{p["row"]}: {p["kind"]}" ' + " ".join(str(p["stages"].get(s, 0) / p["total"] * 100) for s in stages) for p in made)
    drawn = ", ".join(f'$d using {i + 2}:xtic(1) title "{s}"' for i, s in enumerate(stages))
    subprocess.run(["gnuplot"], input=f'$d << EOD\n{rows}\nEOD\nset terminal svg size 1000,700\nset output "{directory}/profile.svg"\n'
                   "set style data histograms\nset style histogram rowstacked\nset style fill solid 0.8 border -1\nset boxwidth 0.7\n"
                   'set ylabel "% of the instructions of a message"\nset yrange [0:100]\nset key outside right\nset xtics rotate by -20\n'
                   f"plot {drawn}\n", text=True, check=True)


def main(directory, ko):
    made = profiles(directory, ko)
    with open(f"{directory}/profile.json", "w") as f:
        json.dump(made, f, indent=1)
    text = markdown(made)
    with open(f"{directory}/profile.md", "w") as f:
        f.write(text)
    plot(directory, made)
    print(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
