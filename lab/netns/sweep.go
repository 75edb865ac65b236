package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// labID is what every name of a lab begins with. Process ids are used again, so the owner is known
// by its id together with the time it started (proc_pid_stat(5), field 22, ticks since boot).
type labID struct {
	prefix string
	pid    int
	start  uint64
	n      int
}

func (id labID) String() string {
	return fmt.Sprintf("%s-%d-%s-%d", id.prefix, id.pid, strconv.FormatUint(id.start, 36), id.n)
}

var labName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([a-z][a-z0-9]{0,11})-([0-9]{1,10})-([0-9a-z]{1,13})-([0-9]{1,9})(-[a-z0-9-]+)?$`)
})

// parseLabID returns the lab that a namespace or directory belongs to; ok is false for names that
// no lab of this package has given.
func parseLabID(name string) (id labID, ok bool) {
	m := labName().FindStringSubmatch(name)
	if m == nil {
		return labID{}, false
	}
	pid, err1 := strconv.Atoi(m[2])
	start, err2 := strconv.ParseUint(m[3], 36, 64)
	n, err3 := strconv.Atoi(m[4])
	return labID{m[1], pid, start, n}, errors.Join(err1, err2, err3) == nil
}

// ownerIsDead reports whether the process that made the lab is gone. Where that cannot be told,
// the owner counts as alive.
func (id labID) ownerIsDead() bool {
	start, err := startTime(id.pid)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
	}
	return start != id.start
}

// startTime returns when a process started, in clock ticks since boot.
func startTime(pid int) (uint64, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The second field is the program's name in brackets, which may itself hold spaces and
	// brackets; the rest begins behind the last one, with field 3.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 20 {
		return 0, fmt.Errorf("/proc/%d/stat has too few fields", pid)
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// Sweep removes what labs with this prefix left behind whose owners are dead: processes in their
// namespaces, the namespaces, files under /etc/netns, temporary directories. Labs of living
// processes, and names that no lab gave, are left alone.
func Sweep(prefix string) error {
	stale := func(dir string) (names []string) {
		entries, _ := os.ReadDir(dir) // a directory that is not there holds no leftovers
		for _, e := range entries {
			if id, ok := parseLabID(e.Name()); ok && id.prefix == prefix && id.ownerIsDead() {
				names = append(names, e.Name())
			}
		}
		return names
	}
	namespaces := append(stale(runDir), stale(etcDir)...)
	slices.Sort(namespaces)
	err := removeNamespaces(slices.Compact(namespaces))
	for _, name := range stale(os.TempDir()) {
		err = errors.Join(err, removeDir(filepath.Join(os.TempDir(), name)))
	}
	if err != nil {
		return fmt.Errorf("sweeping what an earlier lab left: %w", err)
	}
	return nil
}

// removeDir removes a lab's directory, with the file systems that its tests mounted inside: what a
// killed test left mounted would otherwise keep every later lab from starting.
func removeDir(dir string) error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	lines := strings.Split(string(mounts), "\n")
	slices.Reverse(lines) // later mounts lie on earlier ones
	for _, line := range lines {
		// The fifth field is the mount point (proc_pid_mountinfo(5)); no lab's path needs its escapes.
		fields := strings.Fields(line)
		if len(fields) < 5 || fields[4] != dir && !strings.HasPrefix(fields[4], dir+"/") {
			continue
		}
		// Detached, because a process that is still ending may keep it busy.
		if unmountErr := unmount(fields[4]); unmountErr != nil {
			err = errors.Join(err, fmt.Errorf("unmounting %s: %w", fields[4], unmountErr))
		}
	}
	return errors.Join(err, os.RemoveAll(dir))
}

// removeNamespaces kills what runs in the namespaces and removes them with their files.
func removeNamespaces(names []string) error {
	if len(names) == 0 {
		return nil
	}
	err := killWithin(names)
	for _, name := range names {
		if _, statErr := os.Lstat(filepath.Join(runDir, name)); statErr == nil {
			delErr := tool("", "ip", "netns", "del", name)
			// Another sweeper may have been first; and /run on a disk keeps names over a
			// restart that are no longer namespaces, which ip cannot unmount.
			if delErr != nil && os.Remove(filepath.Join(runDir, name)) != nil {
				if _, statErr := os.Lstat(filepath.Join(runDir, name)); statErr == nil {
					err = errors.Join(err, delErr)
				}
			}
		}
		err = errors.Join(err, os.RemoveAll(filepath.Join(etcDir, name)))
	}
	os.Remove(etcDir) // gone when it is empty; otherwise others still use it
	return err
}

// killWithin ends every process inside the namespaces, by its id, and waits until they are gone.
func killWithin(names []string) error {
	inside := map[fileID]bool{}
	for _, name := range names {
		if id, ok := identify(filepath.Join(runDir, name)); ok {
			inside[id] = true
		}
	}
	if len(inside) == 0 {
		return nil
	}
	deadline := time.Now().Add(5 * time.Second) // SIGKILL needs as long as the kernel takes to release
	for {
		pids := processesWithin(inside)
		if len(pids) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v do not end", pids)
		}
		for _, pid := range pids {
			// The handle (a pidfd) pins the process; looking again behind it makes sure that the
			// id was not given to another meanwhile.
			p, err := os.FindProcess(pid)
			if err != nil {
				continue
			}
			if id, ok := identify(fmt.Sprintf("/proc/%d/ns/net", pid)); ok && inside[id] {
				p.Kill()
			}
			p.Release()
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// processesWithin lists the processes whose network namespace is one of the given, this one never.
func processesWithin(inside map[fileID]bool) (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if id, ok := identify(filepath.Join("/proc", e.Name(), "ns/net")); ok && inside[id] {
			pids = append(pids, pid)
		}
	}
	return pids
}
