package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"weft"
)

// newRendezvous is weft server --rendezvous-only on loopback.
func newRendezvous(t *testing.T, flags ...string) *testServer {
	t.Helper()
	s := &testServer{t: t, dir: filepath.Join(t.TempDir(), "rendezvous"), port: freePort(t), flags: append([]string{"--rendezvous-only"}, flags...)}
	s.url = "https://127.0.0.1:" + strconv.Itoa(s.port)
	s.meet()
	return s
}

// meet starts the rendezvous, the first time or again.
func (s *testServer) meet() {
	s.t.Helper()
	addr := fmt.Sprintf("127.0.0.1:%d", s.port)
	s.process = start(s.t, weftCommand(s.t, append([]string{"server", "--data", s.dir, "--listen", addr, "--stun", addr, "--url", s.url}, s.flags...)...))
	s.says("weft server is up")
}

// meets starts a node with two words, which come by the environment.
func (n *testNode) meets(s *testServer, words string, flags ...string) {
	n.t.Helper()
	n.leaveRouterAlone()
	cmd := n.command("", append([]string{"--rendezvous", fmt.Sprintf("127.0.0.1:%d", s.port)}, flags...)...)
	cmd.Env = append(cmd.Env, secretEnv+"="+words)
	secrets.mu.Lock()
	secrets.list = append(secrets.list, words[strings.Index(words, ":")+1:])
	secrets.mu.Unlock()
	n.process = start(n.t, cmd)
}

func (n *testNode) addr() string {
	n.t.Helper()
	a := n.status().Self.Addrs
	if len(a) == 0 {
		return ""
	}
	return a[0].String()
}

func TestTwoWordsAreANetwork(t *testing.T) {
	t.Parallel()
	s := newRendezvous(t)
	s.says("weft node --secret NAME:SECRET --rendezvous")
	const words = "badgers:psk-key-of-many-letters"
	ann, bob, cam := newNode(t), newNode(t), newNode(t)
	ann.meets(s, words, "--name", "ann", "--address", "10.0.0.10/16")
	ann.says("weft is up: ann.weft.internal (10.0.0.10, fd")
	bob.meets(s, words, "--name", "bob", "--address", "10.0.0.20/16")
	bob.says("weft is up: bob.weft.internal (10.0.0.20, fd")
	cam.meets(s, words, "--name", "cam")
	cam.says("weft is up: cam.weft.internal (10.0.")
	ann.reaches("bob")
	bob.reaches("10.0.0.10")
	ann.reaches("cam")
	cam.reaches("bob")
	picked := cam.addr()
	wait(t, "a direct path", func() error {
		for _, p := range ann.status().Peers {
			if p.Name == "bob" && p.Method == weft.Direct {
				return nil
			}
		}
		return errors.New("there is none")
	})

	t.Run("an address that is taken is refused and its holder named", func(t *testing.T) {
		eve := newNode(t)
		eve.meets(s, words, "--name", "eve", "--address", "10.0.0.10/16")
		fails(t, eve.end(), ExitFailed, "10.0.0.10 is taken by ann", "--address")
	})
	t.Run("so is one of another range", func(t *testing.T) {
		eve := newNode(t)
		eve.meets(s, words, "--name", "eve", "--address", "10.0.0.30/24")
		fails(t, eve.end(), ExitFailed, "10.0.0.0/16", "--address")
	})
	t.Run("a wrong secret is said to be one", func(t *testing.T) {
		eve := newNode(t)
		eve.meets(s, words+"s", "--name", "eve")
		fails(t, eve.end(), ExitFailed, "secret is not the one", "check it")
	})
	t.Run("another name is another network", func(t *testing.T) {
		eve := newNode(t)
		eve.meets(s, "wombats:psk-key-of-many-letters", "--name", "eve", "--address", "10.0.0.10/16")
		eve.says("weft is up: eve.weft.internal (10.0.0.10, fd")
		if peers := eve.status().Peers; len(peers) != 0 {
			t.Errorf("it sees %v", peers)
		}
	})
	t.Run("of two that want one address at once, one has it and the other says so", func(t *testing.T) {
		pair := map[string]*testNode{"eve": newNode(t), "fay": newNode(t)}
		for name, n := range pair {
			n.meets(s, words, "--name", name, "--address", "10.0.0.77/16")
		}
		ended := func() (names []string) {
			for name, n := range pair {
				if n.running() != nil {
					names = append(names, name)
				}
			}
			return names
		}
		wait(t, "one of them to end", func() error {
			if len(ended()) == 0 {
				return errors.New("none has")
			}
			return nil
		})
		loser := ended()[0]
		winner := map[string]string{"eve": "fay", "fay": "eve"}[loser]
		pair[winner].says("weft is up: " + winner + ".weft.internal (10.0.0.77")
		if r := pair[loser].end(); r.code != ExitFailed || !strings.Contains(r.err, "taken by "+winner) {
			t.Errorf("%s ended with %d: %s", loser, r.code, r.err)
		}
		ann.reaches(winner)
		if r := pair[winner].run("rotate"); r.code != ExitFailed || !strings.Contains(r.err, "network of two words") {
			t.Errorf("rotate: %+v", r)
		}
		pair[winner].stop()
		for _, n := range []*testNode{ann, bob, cam} { // or the rendezvous stops before it has told
			wait(t, "all to see that it has left", func() error {
				for _, p := range n.status().Peers {
					if p.Name == winner {
						return fmt.Errorf("%s has it", n.status().Self.Name)
					}
				}
				return nil
			})
		}
	})
	t.Run("a token does not mix with it", func(t *testing.T) {
		other := newServer(t)
		fails(t, bob.run("up", other.first), ExitFailed, "already belongs to the network")
	})
	t.Run("without its rendezvous the network goes on, and a restart is not noticed", func(t *testing.T) {
		s.stop()
		bob.stop()
		bob.start("") // from its last map, without the words
		bob.reaches("ann")
		s.meet()
		bob.connected()
		ann.connected()
		cam.connected()
		if a := cam.addr(); a != picked {
			t.Errorf("cam had %s and has %s", picked, a)
		}
		for _, n := range []*testNode{ann, bob, cam} {
			if got := len(n.status().Peers); got != 2 {
				t.Errorf("%s has %d peers", n.status().Self.Name, got)
			}
		}
	})
	t.Run("who leaves is gone, and its address free", func(t *testing.T) {
		if r := cam.run("logout"); r.code != ExitOK {
			t.Errorf("%+v", r)
		}
		wait(t, "ann to see it", func() error {
			names := []string{}
			for _, p := range ann.status().Peers {
				names = append(names, p.Name)
			}
			if slices.Contains(names, "cam") {
				return fmt.Errorf("it has %v", names)
			}
			return nil
		})
		dan := newNode(t)
		dan.meets(s, words, "--name", "dan", "--address", picked+"/16")
		dan.says("weft is up: dan.weft.internal (" + picked)
	})
}

func TestAServerWithAccountsIsNoRendezvousUnlessItIsTold(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	n := newNode(t)
	n.meets(s, "badgers:psk-key-of-many-letters")
	n.says("is no rendezvous")
	n.stop()
	s.stop()
	s.flags = []string{"--rendezvous"}
	s.start()
	ann := newNode(t) // beside it, a member by a token
	ann.start(s.first, "--name", "ann")
	n.meets(s, "badgers:psk-key-of-many-letters", "--name", "bob")
	n.says("weft is up")
	if r := n.run("ping", "-c", "1", "--timeout", "200ms", "ann"); r.code == ExitOK {
		t.Error("a guest reaches a member of the server's own network")
	}
}

func TestARendezvousOfNamedNetworksServesNoOthers(t *testing.T) {
	t.Parallel()
	s := newRendezvous(t, "--rendezvous-network", strings.Repeat("0a", 16))
	n := newNode(t)
	n.meets(s, "badgers:psk-key-of-many-letters", "--name", "ann")
	n.says("--rendezvous-network ")
	said := n.err.String() + n.out.String()
	_, id, _ := strings.Cut(said, "--rendezvous-network ")
	id = id[:32]
	n.stop()
	s.stop()
	s.flags = append(s.flags, "--rendezvous-network", id)
	s.meet()
	n.meets(s, "badgers:psk-key-of-many-letters", "--name", "ann")
	n.says("weft is up: ann")
}

func TestWordsThatAreNoneAreToldInOneSentence(t *testing.T) {
	file := filepath.Join(t.TempDir(), "words")
	if err := os.WriteFile(file, []byte("short\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args  []string
		code  int
		words []string
	}{
		{[]string{"--secret", "badgers", "--rendezvous", "h"}, ExitFailed, []string{"NAME:SECRET"}},
		{[]string{"--secret", file, "--rendezvous", "h"}, ExitFailed, []string{"NAME:SECRET"}},
		{[]string{"--secret", "Bad gers:12345678", "--rendezvous", "h"}, ExitFailed, []string{"lower-case"}},
		{[]string{"--secret", "badgers:1234567", "--rendezvous", "h"}, ExitFailed, []string{"too short", "8"}},
		{[]string{"--secret", file + "-", "--rendezvous", "h"}, ExitFailed, []string{"cannot be read", file}},
		{[]string{"--secret", "", "--rendezvous", "h"}, ExitUsage, []string{"--secret is empty"}},
		{[]string{"--secret", "-", "--rendezvous", "h"}, ExitUsage, []string{"standard input", "NAME:SECRET"}},
		{[]string{"--secret", "badgers:12345678"}, ExitUsage, []string{"--rendezvous HOST"}},
		{[]string{"--secret", "badgers:12345678", "--rendezvous", "h:0"}, ExitUsage, []string{"--rendezvous"}},
		{[]string{"--secret", "badgers:12345678", "--rendezvous", "h", "--address", "10.0.0.0/16"}, ExitUsage, []string{"the network itself"}},
		{[]string{"--secret", "badgers:12345678", "--rendezvous", "h", "--address", "10.0.255.254"}, ExitUsage, []string{"kept for names"}},
		{[]string{"--secret", "badgers:12345678", "--rendezvous", "h", "--address", "127.0.0.1/16"}, ExitUsage, []string{"another use"}},
		{[]string{"--secret", "badgers:12345678", "--rendezvous", "h", "--address", "fd00::1/64"}, ExitUsage, []string{"no address"}},
		{[]string{"--secret", "badgers:12345678", "--rendezvous", "h", "--address", "here"}, ExitUsage, []string{"10.0.0.10/16"}},
		{[]string{"--secret", "badgers:12345678", "--rendezvous", "h", "--token", "weft1_x"}, ExitUsage, []string{"--token and --secret"}},
		{[]string{"--address", "10.0.0.10/16"}, ExitUsage, []string{"--secret"}},
	} {
		fails(t, inProcess(append([]string{"node", "--userspace", "--proxy", "127.0.0.1:0", "--state", t.TempDir(), "--socket", t.TempDir() + "/s"}, c.args...)...), c.code, c.words...)
	}
	fails(t, inProcess("server", "--rendezvous-only", "--range", "10.0.0.0/8"), ExitUsage, "--range")
	fails(t, inProcess("server", "--rendezvous-network", "home"), ExitUsage, "32 hexadecimal digits")
}
