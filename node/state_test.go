package node

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft"
	"weft/key"
	"weft/wire"
)

var silent = slog.New(slog.DiscardHandler)

func openState(t *testing.T, dir string) *State {
	t.Helper()
	s, err := OpenState(dir, silent)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func testToken() wire.Token {
	return wire.Token{URL: "https://192.0.2.1", Server: key.NewPrivate[key.Server]().Public(), Secret: [wire.TokenSecretSize]byte{1, 2, 3}}
}

func TestAMachineIsTheSameNodeAfterARestart(t *testing.T) {
	dir := t.TempDir()
	s, err := OpenState(dir, silent)
	if err != nil {
		t.Fatal(err)
	}
	token := testToken()
	if err := s.Join(token, "ann"); err != nil {
		t.Fatal(err)
	}
	m := weft.NetworkMap{Version: 7, Self: weft.Node{ID: 3, Name: "ann", Addrs: []netip.Addr{netip.MustParseAddr("100.64.0.4")}}}
	s.SetMap(&m)
	if err := s.SetSettings(Settings{Port: 4242}); err != nil {
		t.Fatal(err)
	}
	before := s.Identity()
	s.Close()

	s = openState(t, dir)
	after := s.Identity()
	if before.Node.Public() != after.Node.Public() || before.Machine.Public() != after.Machine.Public() {
		t.Error("the keys are others")
	}
	if after.URL != token.URL || after.Server != token.Server || after.Name != "ann" || string(after.Secret) != string(token.Secret[:]) {
		t.Errorf("the network is another: %+v", after)
	}
	if s.Map() == nil || !s.Map().Self.Equal(m.Self) || s.Map().Version != 7 {
		t.Errorf("the map is %+v", s.Map())
	}
	if s.Settings().Port != 4242 {
		t.Errorf("the settings are %+v", s.Settings())
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) != 3 {
		t.Fatalf("the directory has %v (%v)", files, err)
	}
	for _, f := range files {
		if st, err := os.Stat(f); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v (%v)", f, st.Mode(), err)
		}
	}
}

func TestTheTokensSecretIsForgottenWhenTheServerHasWelcomedTheNode(t *testing.T) {
	dir := t.TempDir()
	s := openState(t, dir)
	if err := s.Join(testToken(), "ann"); err != nil {
		t.Fatal(err)
	}
	if err := s.Welcomed(); err != nil {
		t.Fatal(err)
	}
	if s.Identity().Secret != nil || !s.Identity().Joined() {
		t.Errorf("identity is %+v", s.Identity())
	}
	b, err := os.ReadFile(filepath.Join(dir, identityFile))
	if err != nil || strings.Contains(string(b), "secret") {
		t.Errorf("the file still has it (%v)", err)
	}
}

func TestWhoLeavesIsAnotherNodeNextTime(t *testing.T) {
	s := openState(t, t.TempDir())
	before := s.Identity()
	if err := s.Join(testToken(), "ann"); err != nil {
		t.Fatal(err)
	}
	s.SetMap(&weft.NetworkMap{})
	if err := s.Leave(); err != nil {
		t.Fatal(err)
	}
	after := s.Identity()
	if after.Joined() || s.Map() != nil || after.Node.Public() == before.Node.Public() || after.Machine.Public() == before.Machine.Public() {
		t.Errorf("left, and is %+v", after)
	}
}

func TestADirectoryBelongsToOneDaemonAtATime(t *testing.T) {
	dir := t.TempDir()
	s, err := OpenState(dir, silent)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := OpenState(dir, silent); err == nil {
		second.Close()
		t.Error("a second daemon opened it")
	}
	s.Close()
	openState(t, dir)
}

func TestADamagedIdentityIsRefusedAndADamagedMapIsDoneWithout(t *testing.T) {
	dir := t.TempDir()
	s, err := OpenState(dir, silent)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(mapFile, "{")
	s, err = OpenState(dir, silent)
	if err != nil {
		t.Fatalf("a damaged map stops the daemon: %v", err)
	}
	if s.Map() != nil {
		t.Error("a damaged map is used")
	}
	s.Close()
	for _, damaged := range []string{"", "{", `{"machine_key":"private-machinekey:short","node_key":""}`} {
		write(identityFile, damaged)
		if s, err := OpenState(dir, silent); err == nil {
			s.Close()
			t.Errorf("an identity that reads %q was taken", damaged)
		} else if !strings.Contains(err.Error(), "restore it from a backup") {
			t.Errorf("the error says nothing of what to do: %v", err)
		}
		if b, _ := os.ReadFile(filepath.Join(dir, identityFile)); string(b) != damaged {
			t.Errorf("the damaged file was changed to %q", b)
		}
	}
}
