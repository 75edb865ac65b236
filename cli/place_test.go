package cli

import (
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"weft/control"
)

// What a server, a relay or a node finds where it is to stand: ports, sockets, directories that are somebody else's.

func portOf(t *testing.T, a net.Addr) string {
	t.Helper()
	_, port, err := net.SplitHostPort(a.String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func TestAPortThatIsTakenIsNamed(t *testing.T) {
	t.Parallel()
	port := strconv.Itoa(freePort(t))
	l, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.ListenPacket("udp4", "127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	none := filepath.Join(t.TempDir(), "none")
	for _, role := range []string{"server", "relay"} {
		fails(t, inProcess(role, "--data", none, "--listen", "127.0.0.1:"+port, "--stun", "127.0.0.1:0"),
			ExitFailed, "TCP port", port, "in use by another program", "--listen")
		fails(t, inProcess(role, "--data", none, "--listen", "127.0.0.1:0", "--stun", "127.0.0.1:"+port),
			ExitFailed, "UDP port", port, "in use by another program", "--stun")
		fails(t, inProcess(role, "--data", none, "--listen", "192.0.2.99:0", "--stun", "127.0.0.1:0"),
			ExitFailed, "192.0.2.99:0", "does not have that address", "--listen")
	}
	if c6, err := net.ListenPacket("udp6", "[::]:0"); err == nil { // of one port, half is taken
		defer c6.Close()
		fails(t, inProcess("server", "--data", none, "--listen", "127.0.0.1:0", "--stun", ":"+portOf(t, c6.LocalAddr())),
			ExitFailed, "UDP port", "in use by another program", "--stun")
	}
	n := newNode(t)
	fails(t, start(t, n.command("", "--proxy", "127.0.0.1:"+port)).end(), ExitFailed, "proxy", port, "in use by another program", "--proxy")
	fails(t, start(t, n.command("", "--proxy", "192.0.2.99:0")).end(), ExitFailed, "127.0.0.1", "--proxy")
	for _, path := range []string{none, n.state} {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s was made all the same (%v)", path, err)
		}
	}
}

func TestANodeWhoseUDPPortIsTakenSaysSoAndTakesAnother(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	n := newNode(t)
	n.start(srv.first)
	c, err := net.ListenPacket("udp4", fmt.Sprintf("0.0.0.0:%d", freePort(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	port := portOf(t, c.LocalAddr())
	if r := n.run("set", "port="+port); r.code != ExitOK {
		t.Fatal(r)
	}
	n.says("UDP port is in use by another program, taking any")
	n.connected()
	if got := n.status().Self.Port; got == 0 || strconv.Itoa(int(got)) == port {
		t.Errorf("the port is %d", got)
	}
	c.Close()
	n.stop()
	n.start("")
	n.connected()
	if got := n.status().Self.Port; strconv.Itoa(int(got)) != port {
		t.Errorf("when the port is free again the node uses %d", got)
	}
}

func TestADirectoryIsOneProcessesAtATime(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	other := []string{"--listen", "127.0.0.1:0", "--stun", "127.0.0.1:0"}
	fails(t, inProcess(append([]string{"server", "--data", srv.dir}, other...)...), ExitFailed,
		srv.dir, fmt.Sprintf("pid %d", srv.cmd.Process.Pid), "choose another directory")
	n := newNode(t)
	n.start("")
	second := newNode(t)
	second.state = n.state
	fails(t, start(t, second.command("")).end(), ExitFailed, n.state, fmt.Sprintf("pid %d", n.cmd.Process.Pid), "choose another directory")
	second = newNode(t)
	second.socket = n.socket
	fails(t, start(t, second.command("")).end(), ExitFailed, "another weft listens on "+n.socket, "--socket")
	dir := t.TempDir()
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	relay := startWeft(t, "relay", "--data", dir, "--listen", addr, "--stun", addr, "--url", "https://"+addr, "--token", srv.token("--relay"))
	relay.says("weft relay is up")
	fails(t, inProcess(append([]string{"relay", "--data", dir}, other...)...), ExitFailed, dir, "choose another directory")
	if r := srv.admin("status"); r.code != ExitOK {
		t.Errorf("after that the server says %+v", r)
	}
	if r := n.run("status"); r.code != ExitFailed || !strings.Contains(r.out, "weft up TOKEN") {
		t.Errorf("after that the node says %+v", r)
	}
}

func TestAPathThatIsSomethingElseIsLeftAsItIs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "letter")
	if err := os.WriteFile(file, []byte("Dear sir"), 0o644); err != nil {
		t.Fatal(err)
	}
	ports := []string{"--listen", "127.0.0.1:0", "--stun", "127.0.0.1:0"}
	fails(t, inProcess(append([]string{"server", "--data", file}, ports...)...), ExitFailed, file, "--data")
	fails(t, inProcess(append([]string{"server", "--data", "/proc/weft"}, ports...)...), ExitFailed, "/proc/weft", "--data")
	fails(t, inProcess(append([]string{"relay", "--data", file}, ports...)...), ExitFailed, file, "--data")
	n := newNode(t)
	fails(t, start(t, n.command("", "--state", file)).end(), ExitFailed, file, "--state")
	fails(t, start(t, n.command("", "--socket", file)).end(), ExitFailed, file, "--socket")
	fails(t, start(t, n.command("", "--socket", file+"/s")).end(), ExitFailed, file, "--socket")
	fails(t, start(t, n.command("", "--socket", filepath.Join(dir, strings.Repeat("x", 108)))).end(), ExitFailed, "107 bytes", "--socket")
	fails(t, start(t, n.command("", "--proxy-password-file", dir+"/none")).end(), ExitFailed, dir+"/none", "password")
	fails(t, inProcess("status", "--socket", file), ExitNotRunning, "--socket")
	if b, err := os.ReadFile(file); err != nil || string(b) != "Dear sir" {
		t.Errorf("the file reads %q (%v)", b, err)
	}
}

// nobody is a user without any right; see the package passwd of Debian.
const nobody = 65534

// asNobody has a command run by nobody, from a copy of this binary that nobody may read.
func asNobody(t *testing.T, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can become another user")
	}
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	from, err := os.Open(cmd.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	path := filepath.Join(dir, "weft")
	// A process that another test forks meanwhile would hold the copy open for writing until its own
	// exec, and such a file cannot be run (ETXTBSY).
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(to, from); err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	cmd.Path, cmd.Dir = path, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	return cmd
}

func TestWithoutPermissionWhatToDoIsSaid(t *testing.T) {
	t.Parallel()
	private := t.TempDir()
	srv := newServer(t)
	n := newNode(t)
	n.start("")
	mine := t.TempDir() // nobody's
	if os.Getuid() == 0 {
		for _, d := range []string{mine, filepath.Dir(mine), filepath.Dir(n.socket), filepath.Dir(filepath.Dir(n.socket))} {
			if err := os.Chmod(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chown(mine, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(private, 0o700); err != nil {
		t.Fatal(err)
	}
	ports := []string{"--listen", "127.0.0.1:0", "--stun", "127.0.0.1:0"}
	low := "127.0.0.1:443"
	if b, err := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start"); err == nil && strings.TrimSpace(string(b)) == "0" {
		low = "" // containers let everybody
	}
	for _, c := range []struct {
		name  string
		args  []string
		words []string
	}{
		{"no right to make an interface", []string{"node", "--state", mine + "/state", "--socket", mine + "/s"},
			[]string{"no permission to create a network interface", "root", "--userspace"}},
		{"the state directory", []string{"node", "--userspace", "--proxy", "127.0.0.1:0", "--state", private + "/state", "--socket", mine + "/s"},
			[]string{private + "/state", "permission denied", "--state"}},
		{"another's state directory", []string{"node", "--userspace", "--proxy", "127.0.0.1:0", "--state", n.state, "--socket", mine + "/s"},
			[]string{n.state, "permission denied", "--state"}},
		{"the socket", []string{"node", "--userspace", "--proxy", "127.0.0.1:0", "--state", mine + "/state", "--socket", private + "/s"},
			[]string{private + "/s", "permission denied", "--socket"}},
		{"the server's directory", append([]string{"server", "--data", private + "/server"}, ports...),
			[]string{private + "/server", "permission denied", "--data"}},
		{"another's server directory", append([]string{"server", "--data", srv.dir}, ports...),
			[]string{srv.dir, "permission denied", "--data"}},
		{"the relay's directory", append([]string{"relay", "--data", private + "/relay"}, ports...),
			[]string{private + "/relay", "permission denied", "--data"}},
		{"another's relay directory", append([]string{"relay", "--data", private}, ports...),
			[]string{private, "permission denied", "--data"}},
		{"a low TCP port", []string{"server", "--data", mine + "/server", "--listen", low, "--stun", "127.0.0.1:0"},
			[]string{"no permission to open TCP port", "CAP_NET_BIND_SERVICE", "--listen"}},
		{"the admin socket", []string{"admin", "--data", srv.dir, "status"}, []string{"no permission", "root"}},
		{"down, of somebody else's node", []string{"down", "--socket", n.socket}, []string{"only root or the user that runs weft node", "sudo"}},
		{"up, of somebody else's node", []string{"up", "--socket", n.socket, srv.token()}, []string{"only root or the user that runs weft node", "sudo"}},
		{"set, of somebody else's node", []string{"set", "--socket", n.socket, "port=auto"}, []string{"only root or the user that runs weft node", "sudo"}},
		{"a token file", []string{"up", "--socket", n.socket, private + "/token"}, []string{private + "/token", "permission denied"}},
	} {
		if strings.Contains(strings.Join(c.args, " "), "--listen  ") {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			fails(t, start(t, asNobody(t, weftCommand(t, c.args...))).end(), ExitFailed, c.words...)
		})
	}
	t.Run("looking is for everybody", func(t *testing.T) {
		if r := start(t, asNobody(t, weftCommand(t, "status", "--socket", n.socket))).end(); r.code != ExitFailed || !strings.Contains(r.out, "weft up TOKEN") {
			t.Errorf("%+v", r)
		}
		if r := start(t, asNobody(t, weftCommand(t, "set", "--socket", n.socket))).end(); r.code != ExitOK {
			t.Errorf("%+v", r)
		}
	})
	if r := srv.admin("status"); r.code != ExitOK {
		t.Errorf("after that the server says %+v", r)
	}
}

func TestWithoutATUNDeviceUserspaceModeIsNamed(t *testing.T) {
	t.Parallel()
	cmd := weftCommand(t, "node", "--state", t.TempDir(), "--socket", filepath.Join(t.TempDir(), "s"))
	hide := exec.Command("unshare", "--mount", "sh", "-c", `mount -t tmpfs none /dev/net && exec "$0" "$@"`, "true")
	if out, err := hide.CombinedOutput(); err != nil {
		t.Skipf("the TUN device cannot be hidden here (it takes root, and unshare): %v: %s", err, out)
	}
	args := append([]string{"--mount", "sh", "-c", `mount -t tmpfs none /dev/net && exec "$0" "$@"`}, cmd.Args...)
	hidden := exec.Command("unshare", args...)
	hidden.Env = cmd.Env
	fails(t, start(t, hidden).end(), ExitFailed, "/dev/net/tun", "modprobe tun", "--userspace")
}

// smallDisk is a directory on a file system of 256 KiB; leave makes it full but for some KiB.
func smallDisk(t *testing.T) (dir string, leave func(kib int)) {
	t.Helper()
	dir = t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=256k,mode=755", "weft-test", dir).CombinedOutput(); err != nil {
		t.Skipf("needs to mount a small tmpfs (run as root): %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	filler := filepath.Join(dir, "filler")
	return dir, func(kib int) {
		t.Helper()
		os.Remove(filler)
		f, err := os.Create(filler)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		size := int64(0)
		for block := make([]byte, 4096); ; size += 4096 {
			if _, err := f.Write(block); errors.Is(err, syscall.ENOSPC) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Truncate(max(0, size-int64(kib)<<10)); err != nil {
			t.Fatal(err)
		}
	}
}

// A first start that breaks off at whatever file leaves nothing that a second one stumbles over.
func TestAFirstStartOnAFullDiskIsSaidAndTheNextOneWorks(t *testing.T) {
	t.Parallel()
	disk, leave := smallDisk(t)
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	ports := []string{"--listen", addr, "--stun", addr, "--url", "https://" + addr}
	failed := 0
	for kib := 0; ; kib += 4 {
		leave(kib)
		p := startWeft(t, append([]string{"server", "--data", disk + "/server"}, ports...)...)
		wait(t, "the server to start or to end", func() error {
			if p.running() != nil || strings.Contains(p.err.String(), "weft server is up") {
				return nil
			}
			return errors.New("it does neither")
		})
		if p.running() == nil {
			p.says("weft node --token weft1_")
			line := p.out.String()
			p.tells = strings.Fields(line[strings.Index(line, "weft1_"):])[0]
			p.stop()
			break
		}
		failed++
		fails(t, p.result(), ExitFailed, "full")
		if kib > 200 {
			t.Fatal("the server never starts")
		}
	}
	if failed == 0 {
		t.Error("the server started on a full disk")
	}
	leave(0)
	fails(t, inProcess("node", "--userspace", "--proxy", "127.0.0.1:0", "--state", disk+"/node", "--socket", t.TempDir()+"/s"), ExitFailed, "disk is full", "free some space")
	leave(0)
	srv := newServer(t)
	relay := []string{"relay", "--data", disk + "/relay", "--token", srv.token("--relay")}
	fails(t, runWeft(t, append(relay, ports...)...), ExitFailed, "full")
	leave(64)
	p := startWeft(t, append(relay, ports...)...)
	p.says("member of the network")
	n := newNode(t)
	n.state = disk + "/node"
	n.start(srv.first)
	n.connected()
	n.stop()
	p.stop()
}

func TestAFullDiskCostsARunningServerNothingThatItHas(t *testing.T) {
	t.Parallel()
	disk, leave := smallDisk(t)
	srv := &testServer{t: t, dir: disk + "/server", port: freePort(t)}
	srv.url = "https://127.0.0.1:" + strconv.Itoa(srv.port)
	srv.start()
	ann, bob := newNode(t), newNode(t)
	ann.start(srv.first, "--name", "ann")
	ann.connected()

	leave(0)
	var r result
	for i := range 50 { // what the database has reserved is used up first
		if r = srv.admin("user", "create", fmt.Sprintf("user-%d-%s", i, strings.Repeat("x", 50))); r.code != ExitOK {
			break
		}
	}
	fails(t, r, ExitFailed, "disk is full", "free some space")
	created := srv.admin("user", "list", "--json").out
	if r := srv.admin("status"); r.code != ExitOK || !strings.Contains(r.out, "could not be stored") {
		t.Errorf("status is %+v", r)
	}
	bob.process = start(t, bob.command(srv.first, "--name", "bob"))
	wait(t, "the one who cannot be let in to hear why", func() error {
		if r := bob.run("status"); !strings.Contains(r.out, "disk is full") {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	if r := ann.run("status"); r.code != ExitOK {
		t.Errorf("who is in hears %+v", r)
	}
	srv.cmd.Process.Kill()
	<-srv.done
	leave(64)
	srv.start()
	ann.connected()
	bob.says("weft is up") // it went on trying
	bob.reaches("ann")
	if again := srv.admin("user", "list", "--json").out; again != created {
		t.Errorf("the users were\n%s\nand are\n%s", created, again)
	}
}

func TestAFullDiskCostsARunningNodeNothing(t *testing.T) {
	t.Parallel()
	disk, leave := smallDisk(t)
	srv := newServer(t)
	ann, bob := newNode(t), newNode(t)
	ann.state = disk + "/ann"
	ann.start(srv.first, "--name", "ann")
	ann.connected()
	before := ann.run("set", "--json").out
	leave(0)
	fails(t, ann.run("set", "port=4321"), ExitFailed, "disk is full", "free some space")
	fails(t, ann.run("down"), ExitFailed, "disk is full", "free some space")
	if after := ann.run("set", "--json").out; after != before {
		t.Errorf("the settings were\n%s\nand are\n%s", before, after)
	}
	ann.connected()
	bob.start(srv.first, "--name", "bob") // a new map, which cannot be stored
	ann.reaches("bob")
	ann.stop()
	ann.start("")
	ann.connected()
	ann.reaches("bob")
}

func TestDamageIsSaidAndNothingIsMadeAnewInItsPlace(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	n := newNode(t)
	n.start(srv.first)
	n.connected()
	before := n.status().Self
	relayDir := t.TempDir()
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	relayArgs := []string{"relay", "--data", relayDir, "--listen", addr, "--stun", addr, "--url", "https://" + addr}
	relay := startWeft(t, append(relayArgs, "--token", srv.token("--relay"))...)
	relay.says("member of the network")
	for _, p := range []*process{relay, n.process, srv.process} {
		p.stop()
	}
	serverArgs := append([]string{"server", "--data", srv.dir}, relayArgs[3:]...)
	nodeArgs := n.command("").Args[1:]

	type damage struct {
		name, file string
		args       []string
		do         func(t *testing.T, path string)
		words      []string
	}
	write := func(text string) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove := func(t *testing.T, path string) {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	overwrite := func(from, to float64) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for i := int(from * float64(len(b))); i < int(to*float64(len(b))); i++ {
				b[i] = byte(i * 7)
			}
			write(string(b))(t, path)
		}
	}
	statement := func(text string) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			db, err := sql.Open("sqlite", path)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if _, err := db.Exec(text); err != nil {
				t.Fatal(err)
			}
		}
	}
	database := filepath.Join(srv.dir, control.DatabaseFile)
	for _, d := range []damage{
		{"a database that is none", database, serverArgs, write("Dear sir or madam, " + strings.Repeat("x", 5000)), []string{"not a database", "backup"}},
		{"a database whose pages are damaged", database, serverArgs, overwrite(0.02, 1), []string{database, "backup"}},
		{"a database that was cut", database, serverArgs, func(t *testing.T, path string) {
			if err := os.Truncate(path, 5000); err != nil {
				t.Fatal(err)
			}
		}, []string{database, "backup"}},
		{"a database of a newer weft", database, serverArgs, statement("PRAGMA user_version = 1000"), []string{"newer", "update weft"}},
		{"a database of another program", database, serverArgs, statement("PRAGMA application_id = 1"), []string{"another program", "choose another directory"}},
		{"no server key", filepath.Join(srv.dir, control.ServerKeyFile), serverArgs, remove, []string{"restore the key from a backup"}},
		{"a damaged server key", filepath.Join(srv.dir, control.ServerKeyFile), serverArgs, write("private-serverkey:AAAA"), []string{"damaged", "backup"}},
		{"an empty server key", filepath.Join(srv.dir, control.ServerKeyFile), serverArgs, write(""), []string{"damaged", "backup"}},
		{"a damaged signing key", filepath.Join(srv.dir, control.SigningKeyFile), serverArgs, write("?"), []string{"damaged", "backup"}},
		{"a server key for everybody to read", filepath.Join(srv.dir, control.ServerKeyFile), serverArgs, func(t *testing.T, path string) {
			if err := os.Chmod(path, 0o644); err != nil {
				t.Fatal(err)
			}
		}, []string{"can be read by others", "chmod 600"}},
		{"a damaged relay key", filepath.Join(srv.dir, relayKeyFile), serverArgs, write("?"), []string{relayKeyFile, "damaged", "delete it"}},
		{"a damaged certificate", filepath.Join(srv.dir, certFile), serverArgs, write("?"), []string{certFile, "cannot be used"}},
		{"a certificate without its key", filepath.Join(srv.dir, certKeyFile), serverArgs, remove, []string{certKeyFile, "restore the key"}},
		{"a damaged identity", filepath.Join(n.state, "identity.json"), nodeArgs, overwrite(0.5, 1), []string{"identity.json", "backup", "join anew"}},
		{"an empty identity", filepath.Join(n.state, "identity.json"), nodeArgs, write(""), []string{"identity.json", "backup", "join anew"}},
		{"an identity of no keys", filepath.Join(n.state, "identity.json"), nodeArgs, write("{}"), []string{"identity.json", "backup", "join anew"}},
		{"damaged settings", filepath.Join(n.state, "settings.json"), nodeArgs, write("{"), []string{"settings.json", "correct or delete"}},
		{"a damaged relay", filepath.Join(relayDir, "relay.json"), relayArgs, overwrite(0.5, 1), []string{"relay.json", "damaged", "backup"}},
	} {
		t.Run(d.name, func(t *testing.T) {
			good, err := os.ReadFile(d.file)
			if err != nil {
				t.Fatal(err)
			}
			d.do(t, d.file)
			damaged, damagedErr := os.ReadFile(d.file)
			fails(t, runWeft(t, d.args...), ExitFailed, d.words...)
			if after, err := os.ReadFile(d.file); string(after) != string(damaged) || (err == nil) != (damagedErr == nil) {
				t.Errorf("the file was changed from %d bytes to %d (%v)", len(damaged), len(after), err)
			}
			if err := os.Chmod(d.file, 0o600); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			write(string(good))(t, d.file) // from the backup
		})
	}
	srv.start()
	relay = startWeft(t, relayArgs...)
	relay.says("member of the network")
	if err := os.WriteFile(filepath.Join(n.state, "map.json"), []byte("{"), 0o600); err != nil { // which the server has, too
		t.Fatal(err)
	}
	n.start("")
	n.connected()
	if after := n.status().Self; after.ID != before.ID || after.Key != before.Key || after.Addrs[0] != before.Addrs[0] {
		t.Errorf("with everything restored %+v became %+v", before, after)
	}
}
