package node

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft"
)

func TestAFileThatIsNoSocketIsNotRemovedToMakeOne(t *testing.T) {
	dir := t.TempDir()
	letter := filepath.Join(dir, "letter")
	if err := os.WriteFile(letter, []byte("Dear sir"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"a file":      letter,
		"a directory": dir,
		"a long path": filepath.Join(dir, strings.Repeat("x", maxSocketPath)),
	} {
		l, err := listenAPI(path)
		if err == nil {
			l.Close()
			t.Errorf("%s was taken for a socket", name)
		} else if !strings.Contains(err.Error(), "choose another with --socket") {
			t.Errorf("%s: the error says nothing of what to do: %v", name, err)
		}
	}
	if b, err := os.ReadFile(letter); err != nil || string(b) != "Dear sir" {
		t.Errorf("the file reads %q (%v)", b, err)
	}
}

func TestAPortOfTheProxyThatIsTakenIsSaidBeforeAnythingElse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	state := filepath.Join(t.TempDir(), "state")
	for _, addr := range []string{l.Addr().String(), "192.0.2.1:1055", "nonsense"} {
		_, err := New(Config{StateDir: state, Userspace: true, Proxy: ProxyConfig{Listen: addr}})
		if err == nil || !strings.Contains(err.Error(), "--proxy") {
			t.Errorf("a proxy on %s: %v", addr, err)
		}
	}
	if _, err := os.Stat(state); !os.IsNotExist(err) {
		t.Errorf("the state directory was made all the same (%v)", err)
	}
}

func TestTheMapOfANetworkThatRemovedTheMachineIsForgotten(t *testing.T) {
	dir := t.TempDir()
	s, err := OpenState(dir, silent)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Join(testToken(), "ann"); err != nil {
		t.Fatal(err)
	}
	s.SetMap(&weft.NetworkMap{Self: weft.Node{ID: 3}})
	key := s.Identity().Node.Public()
	if err := s.ForgetMap(); err != nil {
		t.Fatal(err)
	}
	if err := s.ForgetMap(); err != nil {
		t.Errorf("a second time: %v", err)
	}
	s.Close()
	s = openState(t, dir)
	if s.Map() != nil || !s.Identity().Joined() || s.Identity().Node.Public() != key {
		t.Errorf("map %+v, identity %+v", s.Map(), s.Identity())
	}
}

func TestAMapThatSaysNothingIsDoneWithout(t *testing.T) {
	dir := t.TempDir()
	for _, text := range []string{"null", "{}", "[]", `"map"`} {
		if err := os.WriteFile(filepath.Join(dir, mapFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := OpenState(dir, silent)
		if err != nil {
			t.Fatal(err)
		}
		if s.Map() != nil {
			t.Errorf("%s was taken for a map", text)
		}
		s.Close()
	}
}
