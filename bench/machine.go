package bench

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
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

// tick is the unit of /proc/stat (USER_HZ, proc(5)): 100 a second on every architecture that Go knows.
const tick = 10 * time.Millisecond

// busyTime is for how long the machine's processors have worked, all added up.
func busyTime() (time.Duration, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	return parseBusy(string(b))
}

// parseBusy adds up the first line of /proc/stat but for nice (nothing that is measured runs so, and what does is
// somebody else's), idle, iowait, steal (another machine's) and guest, which is part of user.
func parseBusy(stat string) (time.Duration, error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 8 || fields[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %q", line)
	}
	var ticks int64
	for i, f := range fields[1:8] { // user nice system idle iowait irq softirq
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat begins with %q", line)
		}
		if i != 1 && i != 3 && i != 4 {
			ticks += n
		}
	}
	return time.Duration(ticks) * tick, nil
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
