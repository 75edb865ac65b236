package bench

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"weft/lab/netns"
)

// machine says on what was measured.
func machine() string {
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	cpu := "unknown CPU"
	info, _ := os.ReadFile("/proc/cpuinfo")
	count := strings.Count("\n"+string(info), "\nprocessor")
	for line := range strings.Lines(string(info)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			cpu = strings.Trim(name, "\t :\n")
			break
		}
	}
	return fmt.Sprintf("%d x %s, Linux %s", count, cpu, strings.TrimSpace(string(release)))
}

// realTime says what to do if this process runs in real time and Linux rations that; "" if not. What does not sleep has
// its ration used up, and all real-time threads of that processor stand still until the second is over (sched(7)).
func realTime() string {
	stat, _ := os.ReadFile("/proc/self/stat")
	ration, _ := os.ReadFile("/proc/sys/kernel/sched_rt_runtime_us")
	if !inRealTime(string(stat)) || strings.TrimSpace(string(ration)) == "-1" {
		return ""
	}
	return "It runs in real time, and Linux halts that for 50 ms of each second in which a processor does not rest: start it with nice -n -15 instead"
}

// inRealTime reads the scheduling policy, field 41 of a process's stat (proc(5)): SCHED_FIFO or SCHED_RR. The second field is a name
// in parentheses, with anything in it.
func inRealTime(stat string) bool {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	const policy = 41 - 3
	return len(fields) > policy && (fields[policy] == "1" || fields[policy] == "2")
}

// tick is the unit of /proc/stat (USER_HZ, proc(5)): 100 a second on every architecture that Go knows.
const tick = 10 * time.Millisecond

// A machineTime is what all processors of this machine did since it began.
type machineTime struct {
	busy   time.Duration
	nice   time.Duration // more, for processes that had stood back (nice(1)): nothing that is measured does
	stolen time.Duration // there was work, and the host of a virtual machine let it do none
}

// readMachine reads it.
func readMachine() (m machineTime, err error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return m, err
	}
	return parseMachine(string(b))
}

// since is the shares of all processors that were busy and stolen since a reading, at a time: 0 to 1.
func (m machineTime) since(before machineTime, took time.Duration) (busy, stolen float64) {
	all := took.Seconds() * float64(runtime.NumCPU())
	return (m.busy - before.busy).Seconds() / all, (m.stolen - before.stolen).Seconds() / all
}

// parseMachine adds up the first line of /proc/stat but for idle, iowait and guest, which is part of user.
func parseMachine(stat string) (m machineTime, err error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return m, fmt.Errorf("/proc/stat begins with %q", line)
	}
	for i, f := range fields[1:9] { // user nice system idle iowait irq softirq steal
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return machineTime{}, fmt.Errorf("/proc/stat begins with %q", line)
		}
		switch i {
		case 0, 2, 5, 6:
			m.busy += time.Duration(n) * tick
		case 1:
			m.nice = time.Duration(n) * tick
		case 7:
			m.stolen = time.Duration(n) * tick
		}
	}
	return m, nil
}

// A meter tells what the machine spends on a measurement and on other things.
type meter struct {
	machineTime
	began time.Time
	ours  time.Duration
}

// meter reads the counters now. Ours are the processes of the site, this one and its children that have ended, and the
// kernel's threads for packets that wait.
func (s *site) meter() (m meter, err error) {
	if m.machineTime, err = readMachine(); err != nil {
		return m, err
	}
	m.began = time.Now()
	for _, pid := range s.pids {
		cpu, err := cpuOf(pid)
		if err != nil {
			return m, err
		}
		m.ours += cpu
	}
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if err := syscall.Getrusage(who, &u); err != nil {
			return m, err
		}
		m.ours += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return m, nil
}

// since is what was spent between two readings. What was stolen others had.
func (m meter) since(before meter) (took, busy, others time.Duration) {
	busy = m.busy - before.busy
	others = busy + m.nice - before.nice + m.stolen - before.stolen - (m.ours - before.ours)
	return m.began.Sub(before.began), busy, max(0, others)
}

// softirqThreads are the kernel's threads for packets that wait, one a processor.
func softirqThreads() (pids []int) {
	names, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, name := range names {
		b, err := os.ReadFile(name)
		if pid, bad := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil && bad == nil && strings.HasPrefix(string(b), "ksoftirqd/") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// peakMemory is the most that a process ever had in memory, in bytes.
func peakMemory(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	return parsePeak(string(b))
}

func parsePeak(status string) (float64, error) {
	for line := range strings.Lines(status) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			return kib * 1024, err
		}
	}
	return 0, errors.New("the kernel does not tell VmHWM")
}

const (
	congestionControl = "/proc/sys/net/ipv4/tcp_congestion_control"
	congestionAllowed = "/proc/sys/net/ipv4/tcp_allowed_congestion_control"
)

// setCongestion makes a congestion control the default of a host. A namespace takes only what the machine allows to
// everybody: what it does not is allowed for this moment.
func setCongestion(h *netns.Host, name string) error {
	set := func() error {
		return h.Do(func() error { return os.WriteFile(congestionControl, []byte(name), 0o644) })
	}
	err := set()
	if !errors.Is(err, fs.ErrPermission) {
		return congestionError(name, err)
	}
	b, err := os.ReadFile(congestionAllowed)
	if err != nil {
		return congestionError(name, err)
	}
	if slices.Contains(strings.Fields(string(b)), name) {
		return congestionError(name, fs.ErrPermission)
	}
	if err := os.WriteFile(congestionAllowed, []byte(strings.TrimSpace(string(b))+" "+name), 0o644); err != nil {
		return congestionError(name, err)
	}
	err = set()
	return congestionError(name, errors.Join(err, os.WriteFile(congestionAllowed, b, 0o644)))
}

func congestionError(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("TCP congestion control %s cannot be used here: %w (choose another with --congestion)", name, err)
}
