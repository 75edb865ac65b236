//go:build linux

package host

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// mountOver does what ip netns exec does: it puts another file over a path, links
// followed.
func (m *machine) mountOver(p, text string) (under string) {
	m.Helper()
	under = filepath.Join(m.T.TempDir(), "resolv.conf")
	m.must(os.WriteFile(under, []byte(text), 0o644))
	m.must(unix.Mount(under, m.path(p), "", unix.MS_BIND, ""))
	m.Cleanup(func() { _ = unix.Unmount(m.path(p), unix.MNT_DETACH) })
	return under
}

func TestAMountedFileIsWrittenInPlaceAndTheMachinesIsNotTouched(t *testing.T) {
	inMountNamespace(t)
	const machines, mounted = "nameserver 192.0.2.1\n", "search lab\nnameserver 10.0.0.1\n# the namespace's\n"
	for _, tc := range []struct {
		name string
		make func(*machine)
		at   string // where the machine's file is
		hide bool   // from the mount table
	}{
		{"over a file", func(m *machine) { m.write(resolvConfPath, machines) }, resolvConfPath, false},
		{"over a file, and the table does not show it", func(m *machine) { m.write(resolvConfPath, machines) }, resolvConfPath, true},
		{"over what a link leads to", func(m *machine) {
			m.write(resolvedStub, machines)
			m.link("../run/systemd/resolve/stub-resolv.conf", resolvConfPath)
		}, resolvedStub, false},
	} {
		m := newMachine(t)
		tc.make(m)
		m.env.foreign = func() bool { return !tc.hide }
		under := m.mountOver(resolvConfPath, mounted)
		if tc.hide {
			m.env.mountPoint = func(string) (bool, error) { return false, nil }
		}
		before := m.tree()
		r := m.mustConfigure(modeFile)
		if got := m.firstServer(); got != "100.64.0.7" {
			t.Errorf("%s: the first server is %q", tc.name, got)
		}
		if diff := cmp.Diff([]string{"10.0.0.1:53"}, upstreamsOf(r)); diff != "" {
			t.Errorf("%s: upstreams (-want +got):\n%s", tc.name, diff)
		}
		if names := namesIn(t, m.path("/etc")); names != "resolv.conf" {
			t.Errorf("%s: in the machine's /etc there is now %s", tc.name, names)
		}
		m.must(r.Refresh(t.Context()))

		// Killed between writing and shortening, on the way in and on the way out.
		s, err := loadResolver(m.state)
		m.must(err)
		for _, torn := range [][]byte{overlay(s.File.Written, s.File.Content), overlay(s.File.Content, s.File.Written)} {
			m.must(os.WriteFile(m.path(resolvConfPath), torn, 0o644))
			m.repair()
			if got := m.read(resolvConfPath); got != mounted {
				t.Errorf("%s: after the repair the file holds %q", tc.name, got)
			}
			m.must(saveResolver(m.state, s))
		}
		m.must(os.WriteFile(m.path(resolvConfPath), s.File.Written, 0o644))

		// Somebody edits it; it is taken out without them losing that.
		m.must(os.WriteFile(m.path(resolvConfPath), append(slices.Clone(s.File.Written), "options debug\n"...), 0o644))
		m.repair()
		if got := m.read(resolvConfPath); strings.Contains(got, "100.64.0.7") || !strings.Contains(got, "options debug") {
			t.Errorf("%s: after the repair of an edited file it holds %q", tc.name, got)
		}
		m.must(os.WriteFile(m.path(resolvConfPath), []byte(mounted), 0o644))

		// Without the mount the record is about another file and stays.
		r = m.mustConfigure(modeFile)
		m.must(unix.Unmount(m.path(resolvConfPath), 0))
		m.repair()
		if got := m.read(tc.at); got != machines {
			t.Errorf("%s: the machine's file holds %q", tc.name, got)
		}
		if names := namesIn(t, m.state); names != resolverState {
			t.Errorf("%s: the state directory holds %q", tc.name, names)
		}
		m.must(unix.Mount(under, m.path(resolvConfPath), "", unix.MS_BIND, ""))
		m.must(r.Close())
		if diff := cmp.Diff(before, m.tree()); diff != "" {
			t.Errorf("%s: after all (-before +after):\n%s", tc.name, diff)
		}
	}
}

func TestAFullDiskNeverLeavesTheMachineWithoutAResolver(t *testing.T) {
	disk := smallDisk(t)
	m := newMachine(t)
	m.root = filepath.Join(disk, "root")
	m.env.root = m.root
	m.must(os.MkdirAll(m.path("/etc"), 0o755))
	const former = "nameserver 192.0.2.1\n"
	m.write(resolvConfPath, former)

	// Full before: nothing changes.
	fill(t, disk)
	if _, err := m.configure(); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a full disk: got %v", err)
	}
	if got := m.read(resolvConfPath); got != former {
		t.Errorf("the file holds %q", got)
	}
	if names := namesIn(t, m.path("/etc")) + namesIn(t, m.state); names != "resolv.conf" {
		t.Errorf("left behind: %s", names)
	}
	// Full meanwhile: putting it back takes no room.
	m.must(os.Remove(filepath.Join(disk, "filler")))
	r := m.mustConfigure(modeFile)
	fill(t, disk)
	m.must(r.Close())
	if got := m.read(resolvConfPath); got != former {
		t.Errorf("the file holds %q", got)
	}
	// The state directory is on the same disk, and there is room for the record and
	// for nothing else.
	m.state = filepath.Join(disk, "root", "state")
	m.must(os.Mkdir(m.state, 0o700))
	if _, err := m.configure(); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a disk that fills up: got %v", err)
	}
	if got := m.read(resolvConfPath); got != former {
		t.Errorf("the file holds %q", got)
	}
	if names := namesIn(t, m.path("/etc")) + namesIn(t, m.state); names != "resolv.conf" {
		t.Errorf("left behind: %s", names)
	}
	// Not even for that.
	fill(t, disk)
	if _, err := m.configure(); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("a full disk under the state directory: got %v", err)
	}
	if got := m.read(resolvConfPath); got != former {
		t.Errorf("the file holds %q", got)
	}
}
