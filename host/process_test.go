//go:build linux

package host

import (
	"bufio"
	"bytes"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// helperEnv makes the test binary play another process; its value says which.
const helperEnv = "WEFT_HOST_TEST_HELPER"

func TestMain(m *testing.M) {
	MakePlaces()
	switch os.Getenv(helperEnv) {
	case "":
		os.Exit(m.Run())
	case "lock":
		helpLock()
	case "resolver":
		helpResolver()
	case "names":
		helpNames()
	}
	os.Exit(2)
}

// helper starts the test binary in a role and waits until it prints a line; kill ends
// it the hard way.
func helper(t *testing.T, role string, env ...string) (line string, kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), helperEnv+"="+role), env...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe() // open as long as we live, so that no helper outlives us
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		stdin.Close()
	})
	t.Cleanup(kill)
	line, err = bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("the helper said nothing: %v", err)
	}
	return strings.TrimSpace(line), kill
}

// untilKilled is the end of every helper.
func untilKilled(line string) {
	os.Stdout.WriteString(line + "\n")
	_, _ = os.Stdin.Read(make([]byte, 1))
	os.Exit(0)
}

func helpLock() {
	if _, err := LockFile(os.Getenv("WEFT_HOST_TEST_PATH")); err != nil {
		untilKilled(err.Error())
	}
	untilKilled("locked")
}

func TestASecondProcessIsToldWhoUsesTheDirectoryUntilThatOneIsKilled(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "lock")
	line, kill := helper(t, "lock", "WEFT_HOST_TEST_PATH="+path)
	if line != "locked" {
		t.Fatal(line)
	}
	_, err := LockFile(path)
	if !errors.Is(err, ErrLocked) {
		t.Fatalf("got %v, want ErrLocked", err)
	}
	for _, want := range []string{dir, "another weft process (pid ", "choose another directory"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	kill()
	unlock, err := LockFile(path)
	if err != nil {
		t.Fatalf("after the holder was killed: %v", err)
	}
	if _, err := LockFile(path); !errors.Is(err, ErrLocked) {
		t.Errorf("the same process a second time: %v", err)
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
	unlock, err = LockFile(path)
	if err != nil {
		t.Fatalf("after unlock: %v", err)
	}
	_ = unlock()
}

func TestAFileIsReplacedWholeWithItsPermissions(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state")
	for _, tc := range []struct {
		data string
		perm fs.FileMode
	}{{"first, and longer", 0o600}, {"second", 0o640}, {"", 0o600}} {
		if err := WriteFileAtomic(path, []byte(tc.data), tc.perm); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != tc.data {
			t.Errorf("got %q, %v, want %q", got, err, tc.data)
		}
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != tc.perm {
			t.Errorf("permissions %v, want %v", st.Mode(), tc.perm)
		}
	}
	// Left behind by a process that was killed an hour ago, and by one that works
	// right now.
	old, young := filepath.Join(dir, tempPrefix("state")+"1"), filepath.Join(dir, tempPrefix("state")+"2")
	for _, p := range []string{old, young} {
		if err := os.WriteFile(p, []byte("secret"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Now().Add(-2 * abandonedAfter)
	if err := os.Chtimes(old, past, past); err != nil {
		t.Fatal(err)
	}
	if err := WriteFileAtomic(path, []byte("third"), 0o600); err != nil {
		t.Fatal(err)
	}
	names := namesIn(t, dir)
	if want := filepath.Base(young) + " state"; names != want {
		t.Errorf("the directory holds %q, want %q", names, want)
	}
}

func namesIn(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func TestOnAFullDiskTheOldFileIsIntactAndTheErrorSaysSo(t *testing.T) {
	dir := smallDisk(t)
	path := filepath.Join(dir, "state")
	old := []byte("what was there")
	if err := WriteFileAtomic(path, old, 0o600); err != nil {
		t.Fatal(err)
	}
	fill(t, dir)
	err := WriteFileAtomic(path, bytes.Repeat([]byte("new"), 10_000), 0o600)
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("got %v, want ENOSPC", err)
	}
	for _, want := range []string{path, "the disk is full", "is intact"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, old) {
		t.Errorf("the file holds %q, %v", got, err)
	}
	if names := namesIn(t, dir); names != "filler state" {
		t.Errorf("left behind: %s", names)
	}
}

func TestTheServiceManagerHearsReadyAndStopping(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := NotifyReady(); err != nil {
		t.Errorf("without a service manager: %v", err)
	}
	for _, name := range []string{filepath.Join(t.TempDir(), "notify"), "@weft-host-test-notify"} {
		c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		t.Setenv("NOTIFY_SOCKET", name)
		for _, tc := range []struct {
			notify func() error
			want   string
		}{{NotifyReady, "READY=1"}, {NotifyStopping, "STOPPING=1"}} {
			if err := tc.notify(); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 64)
			n, err := c.Read(buf)
			if err != nil || string(buf[:n]) != tc.want {
				t.Errorf("on %s: got %q, %v, want %q", name, buf[:n], err, tc.want)
			}
		}
	}
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "nobody"))
	if NotifyReady() == nil {
		t.Error("a service manager that cannot be reached is no error")
	}
}

func TestALocalConnectionIsKnownByItsProcess(t *testing.T) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	want := Credentials{UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), PID: int32(os.Getpid())}
	if got, err := PeerCredentials(conn); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	conn.Close()
	if _, err := PeerCredentials(conn); err == nil {
		t.Error("a closed connection has credentials")
	}
}

func TestUDPBuffersGrowBeyondTheLimitOnlyWithPermission(t *testing.T) {
	inNetworkNamespace(t)
	c, err := net.ListenUDP("udp", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const want = 7 << 20 // bytes; the usual net.core.rmem_max is 208 KiB, some set 4 MiB
	receive, send, err := SetUDPBuffers(c, want)
	if err != nil || receive != want || send != want {
		t.Errorf("with permission: %d, %d, %v, want %d", receive, send, err, want)
	}
	withoutCapability(t, unix.CAP_NET_ADMIN)
	receive, send, err = SetUDPBuffers(c, 64<<10)
	if err != nil || receive != 64<<10 || send != 64<<10 {
		t.Errorf("without, and within the limit: %d, %d, %v", receive, send, err)
	}
	c.Close()
	if _, _, err := SetUDPBuffers(c, want); err == nil {
		t.Error("a closed socket has buffers")
	}
}

func TestAnAddressCanBeBoundBeforeItsLinkIsThere(t *testing.T) {
	inNetworkNamespace(t)
	// A network without any address takes every one for broadcast.
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	lc := net.ListenConfig{Control: FreeBind}
	for _, a := range []string{"100.64.0.7:53", "[fd7a::7]:53"} {
		c, err := lc.ListenPacket(t.Context(), "udp", a)
		if err != nil {
			t.Errorf("udp %s: %v", a, err)
			continue
		}
		c.Close()
		l, err := lc.Listen(t.Context(), "tcp", a)
		if err != nil {
			t.Errorf("tcp %s: %v", a, err)
			continue
		}
		l.Close()
	}
	if c, err := net.ListenPacket("udp", "100.64.0.7:53"); err == nil {
		c.Close()
		t.Error("it can without, so the test above shows nothing")
	}
}
