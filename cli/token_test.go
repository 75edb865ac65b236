package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft/wire"
)

// mistyped changes one letter in the middle of a token.
func mistyped(token string) string {
	at := len(token) / 2
	other := "A"
	if token[at] == 'A' {
		other = "B"
	}
	return token[:at] + other + token[at+1:]
}

func TestEveryBadTokenIsToldApart(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	other := newServer(t)
	file := func(name, content string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := srv.token()
	forRelay, spent, spentRelay := srv.token("--relay"), srv.token(), srv.token("--relay")
	expired, expiredRelay := srv.token("--expires", "1ms"), srv.token("--relay", "--expires", "1ms")
	withdrawn := srv.token()
	if r := srv.admin("key", "remove", "8"); r.code != ExitOK { // the first start made number 1
		t.Fatal(r)
	}
	if r := srv.admin("key", "list"); !strings.HasPrefix(strings.Split(r.out, "\n")[8], "8   revoked") {
		t.Fatalf("the keys are\n%s", r.out)
	}

	// Of another server: its key, at the address of this one.
	stranger, err := wire.ParseToken(other.first)
	if err != nil {
		t.Fatal(err)
	}
	stranger.URL = srv.url
	unknown, err := wire.ParseToken(good) // of this server, before its data was lost
	if err != nil {
		t.Fatal(err)
	}
	unknown.Secret[0]++
	strangerRelay, unknownRelay := stranger, unknown
	strangerRelay.Relay, unknownRelay.Relay = true, true

	first := newNode(t)
	first.start(spent)
	first.connected()
	relay := func(t *testing.T, dir, token string) *process {
		addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
		return startWeft(t, "relay", "--data", dir, "--listen", addr, "--stun", addr, "--url", "https://"+addr, "--token", token)
	}
	relay(t, t.TempDir(), spentRelay).says("member of the network")

	type attempt struct {
		name, token string
		words       string
	}
	common := []attempt{
		{"empty", "", "the token is empty"},
		{"blank", "  ", "the token is empty"},
		{"an empty file", file("empty", "\n"), "has nothing in it"},
		{"cut at the end", good[:len(good)-10], "cut or mistyped: copy it again"},
		{"cut at the end, in a file", file("token", good[:len(good)-10]), "cut or mistyped: copy it again"},
		{"cut at the beginning", "x" + good[10:], "copy the token again, whole"},
		{"mistyped", mistyped(good), "cut or mistyped: copy it again"},
		{"something else", file("letter", "Dear sir or madam"), "must begin with"},
		{"a file that there is not", "/no/such/file", "/no/such/file: no such file"},
		{"a directory", t.TempDir(), "is a directory"},
	}
	forNode := append([]attempt{
		{"a relay's", forRelay, "weft relay"},
		{"expired", expired, "ended on"},
		{"spent", spent, "has been used"},
		{"withdrawn", withdrawn, "withdrawn"},
		{"unknown", unknown.String(), "does not know this token"},
		{"of another server", stranger.String(), "does not hold the key in the token"},
	}, common...)

	t.Run("weft node", func(t *testing.T) {
		for _, a := range forNode {
			t.Run(a.name, func(t *testing.T) {
				t.Parallel()
				n := newNode(t)
				r := start(t, n.command("", "--token", a.token)).end()
				fails(t, r, ExitFailed, a.words)
				if strings.Contains(r.err, "time=") {
					t.Errorf("beside the sentence it logged:\n%s", r.err)
				}
			})
		}
	})
	t.Run("weft up", func(t *testing.T) {
		n := newNode(t)
		n.start("")
		for _, a := range forNode {
			t.Run(a.name, func(t *testing.T) { fails(t, n.run("up", a.token), ExitFailed, a.words) })
		}
		t.Run("and a good one after all", func(t *testing.T) {
			if r := n.run("up", good); r.code != ExitOK || !strings.HasPrefix(r.out, "up: ") || r.err != "" {
				t.Errorf("%+v", r)
			}
			n.connected()
		})
	})
	t.Run("weft relay", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "relay")
		for _, a := range append([]attempt{
			{"a node's", good, "--relay"},
			{"expired", expiredRelay, "ended on"},
			{"spent", spentRelay, "has been used"},
			{"unknown", unknownRelay.String(), "does not know this token"},
			{"of another server", strangerRelay.String(), "does not hold the key in the token"},
		}, common...) {
			t.Run(a.name, func(t *testing.T) { fails(t, relay(t, dir, a.token).end(), ExitFailed, a.words) })
		}
		t.Run("and a good one after all", func(t *testing.T) { relay(t, dir, forRelay).says("member of the network") })
	})
	if r := srv.admin("node", "list", "--json"); strings.Count(r.out, `"machine"`) != 2 { // the first one, and weft up's
		t.Errorf("after all that the nodes are %s", r.out)
	}
	first.connected()
}

func TestATokenComesByStandardInputFileOrEnvironmentAndWrapped(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	wrapped := srv.first[:50] + "\r\n  " + srv.first[50:] + "\r\n"
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(wrapped), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"environment": nil, "standard input": {"--token", "-"}, "file": {"--token=" + file}, "command line": {"--token", srv.first},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			cmd := n.command("", args...)
			switch name {
			case "environment":
				cmd.Env = append(cmd.Env, tokenEnv+"="+wrapped)
			case "standard input":
				cmd.Stdin = strings.NewReader(wrapped)
			}
			n.process = start(t, cmd)
			n.says("weft is up")
		})
	}
}

// Anybody may read anybody's command line (ps, /proc/PID/cmdline), and what keeps it: audit logs, monitoring.
func TestATokenDoesNotStayInTheCommandLine(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/cmdline"); err != nil {
		t.Skipf("this system shows no command lines: %v", err)
	}
	srv := newServer(t)
	silent, err := wire.ParseToken(srv.first) // nobody is there: weft up goes on asking
	if err != nil {
		t.Fatal(err)
	}
	silent.URL = fmt.Sprintf("https://127.0.0.1:%d", freePort(t))
	down := newNode(t)
	down.start("")
	relayToken := srv.token("--relay")
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	separate, joined := newNode(t), newNode(t)
	for name, p := range map[string]*process{
		"node --token TOKEN": start(t, separate.command("", "--token", srv.first)),
		"node --token=TOKEN": start(t, joined.command("", "--token="+srv.first, "--name", "ann")),
		"up TOKEN":           startWeft(t, "--socket", down.socket, "up", silent.String(), "--name", "bob"),
		"relay --token TOKEN": startWeft(t, "relay", "--token", relayToken, "--data", t.TempDir(),
			"--listen", addr, "--stun", addr, "--url", "https://"+addr),
	} {
		wait(t, name+" to hide the token", func() error {
			line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.cmd.Process.Pid))
			if err != nil {
				return fatal{err}
			}
			if bytes.Contains(line, []byte(wire.TokenPrefix)) || len(line) == 0 {
				return fmt.Errorf("it reads %q", line)
			}
			return nil
		})
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.cmd.Process.Pid))
		if kept := strings.Fields(name)[0]; !bytes.Contains(line, []byte(kept)) {
			t.Errorf("%s: the rest of the command line is gone, too: %q", name, line)
		}
		if name == "up TOKEN" {
			p.t.Cleanup(func() { p.cmd.Process.Kill() }) // it waits for a server that there is not
		} else {
			p.says(map[bool]string{true: "member of the network", false: "weft is up"}[strings.HasPrefix(name, "relay")])
		}
		// Its children would inherit the environment; /proc/PID/environ is the owner's alone.
		if st, err := os.Stat(fmt.Sprintf("/proc/%d/environ", p.cmd.Process.Pid)); err != nil || st.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: the environment can be read by others: %v %v", name, st.Mode(), err)
		}
	}
	if id, err := os.ReadFile(filepath.Join(separate.state, "identity.json")); err != nil || bytes.Contains(id, []byte("secret\"")) {
		t.Errorf("the state directory keeps the secret (%v)", err)
	}
}

func TestAMachineThatWasRemovedComesBackWithANewToken(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	n := newNode(t)
	n.start(srv.token(), "--name", "ann")
	n.connected()
	addr := n.status().Self.Addrs[0]
	remove := func() {
		t.Helper()
		if r := srv.admin("node", "remove", "ann"); r.code != ExitOK {
			t.Fatal(r)
		}
	}
	refused := func() {
		t.Helper()
		wait(t, "the node to know", func() error {
			if s := n.status(); s.State != "refused" {
				return fmt.Errorf("it is %s", s.State)
			}
			return nil
		})
	}
	remove()
	refused()
	if r := n.run("status"); r.code != ExitFailed || !strings.Contains(r.out, "weft up TOKEN") || strings.Contains(r.out, "  \n") {
		t.Errorf("status is %+v", r)
	}
	fails(t, n.run("up"), ExitFailed, "new token")
	fails(t, n.run("up", srv.token("--expires", "1ms")), ExitFailed, "ended on")
	if r := n.run("up", srv.token()); r.code != ExitOK {
		t.Errorf("up with a new token: %+v", r)
	}
	n.connected()
	if got := n.status().Self.Addrs[0]; got == addr {
		t.Errorf("the address %s was given a second time", got)
	}

	// Removed while it was off: a start without a token says what to do, one with a token joins, whether the
	// machine has heard already or not.
	for _, hears := range []bool{true, false} {
		n.stop()
		remove()
		if hears {
			n.start("")
			refused()
			n.stop()
		}
		n.process = start(t, n.command(srv.token("--expires", "1ms")))
		r := n.end()
		r.out = "" // without having heard, it is up from its last map for a moment
		fails(t, r, ExitFailed, "ended on")
		if !hears {
			n.start(srv.token()) // and by now it has
			n.connected()
			n.stop()
			remove()
		}
		n.start(srv.token())
		n.connected()
	}

	// A running node is not let in again by the token that it was started with.
	remove()
	refused()
	if r := n.run("logout"); r.code != ExitOK || r.err != "" {
		t.Errorf("logout of a node that was removed: %+v", r)
	}
	if r := n.run("status", "--json"); r.code != ExitFailed || !strings.Contains(r.out, `"needs-join"`) {
		t.Errorf("status is %+v", r)
	}
}

func TestAMemberThatIsStartedWithItsTokenAgainStaysWhoItIs(t *testing.T) {
	t.Parallel()
	srv := newServer(t)
	other := newServer(t)
	n := newNode(t)
	token := srv.token()
	n.start(token)
	n.connected()
	before := n.status().Self
	n.stop()
	n.start(token) // spent, by this very machine
	n.connected()
	if after := n.status().Self; after.ID != before.ID || after.Key != before.Key {
		t.Errorf("%+v became %+v", before, after)
	}
	fails(t, n.run("up", other.first), ExitFailed, "weft logout")
	n.stop()
	fails(t, start(t, n.command(other.first)).end(), ExitFailed, "weft logout")
	n.start("")
	n.connected()
}

func TestWeftUpSaysAfterAWhileThatTheServerIsNotThere(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it waits as long as a person would")
	}
	srv := newServer(t)
	srv.stop()
	n := newNode(t)
	n.start("")
	began := time.Now()
	fails(t, n.run("up", srv.first), ExitFailed, "still trying", srv.url)
	if waited := time.Since(began); waited < 10*time.Second {
		t.Errorf("it waited for %v only", waited)
	}
	if r := n.run("status"); r.code != ExitFailed || !strings.Contains(r.out, "no connection to the server") {
		t.Errorf("status is %+v", r)
	}
	impatient := startWeft(t, "--socket", n.socket, "up", "-v")
	wait(t, "it to ask", func() error {
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", impatient.cmd.Process.Pid))
		if err != nil {
			return fatal{err}
		}
		for _, fd := range fds {
			if to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", impatient.cmd.Process.Pid, fd.Name())); strings.HasPrefix(to, "socket:") {
				return nil
			}
		}
		return fmt.Errorf("it has %d descriptors", len(fds))
	})
	impatient.cmd.Process.Signal(os.Interrupt)
	fails(t, impatient.end(), ExitFailed, "interrupted")
	srv.start()
	began = time.Now()
	if r := n.run("up"); r.code != ExitOK {
		t.Errorf("up with the server there: %+v", r)
	}
	if took := time.Since(began); took > 5*time.Second { // it would try by itself in up to 30
		t.Errorf("it was tried after %v only", took)
	}
	n.connected()
}
