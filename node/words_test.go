package node

import (
	"bytes"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft"
	"weft/key"
	"weft/rendezvous"
)

func wordsOf(t *testing.T, name string, secret byte, address string) Words {
	t.Helper()
	shared, err := key.SharedFrom(bytes.Repeat([]byte{secret}, key.Size))
	if err != nil {
		t.Fatal(err)
	}
	n, err := rendezvous.NewNetwork(name, shared)
	if err != nil {
		t.Fatal(err)
	}
	w := Words{Network: n, URL: "https://192.0.2.1"}
	if address != "" {
		w.Address = netip.MustParsePrefix(address)
	}
	return w
}

func TestAMachineStaysInItsNetworkOfTwoWords(t *testing.T) {
	dir := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	open := func() *State {
		t.Helper()
		s, err := OpenState(dir, log)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	w := wordsOf(t, "home", 1, "10.0.0.10/16")
	if err := s.Meet(w, "ann"); err != nil {
		t.Fatal(err)
	}
	self := weft.Node{ID: 0x0A00000A, Name: "ann", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.10")}}
	s.SetMap(&weft.NetworkMap{Self: self, Ranges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}})
	node := s.Identity().Node.Public()
	s.Close()

	s = open()
	id := s.Identity()
	if !id.Joined() || id.Network.Public != w.Network.Public || id.Network.Name != "home" || id.Address != w.Address || id.URL != w.URL || id.Node.Public() != node || s.Map() == nil {
		t.Errorf("after a restart it is %+v", id)
	}
	if st, err := os.Stat(filepath.Join(dir, identityFile)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the file with the secret has mode %v: %v", st.Mode(), err)
	}

	// The same again keeps the map; another address or network does not.
	if err := s.Meet(wordsOf(t, "home", 1, ""), "ann"); err != nil || s.Map() == nil {
		t.Errorf("the map is forgotten for nothing: %v", err)
	}
	if err := s.Meet(wordsOf(t, "home", 1, "10.0.0.11/16"), "ann"); err != nil || s.Map() != nil {
		t.Errorf("with another address it starts from the map of the old one: %v", err)
	}
	s.SetMap(&weft.NetworkMap{Self: self})
	if err := s.Meet(wordsOf(t, "home", 2, ""), "ann"); err != nil || s.Map() != nil {
		t.Errorf("with another secret it starts from the map of the old network: %v", err)
	}
	if err := s.Leave(); err != nil || s.Identity().Network.Name != "" || s.Identity().Joined() {
		t.Errorf("after leaving it is %+v: %v", s.Identity(), err)
	}
	s.Close()
	if b, err := os.ReadFile(filepath.Join(dir, identityFile)); err != nil || strings.Contains(string(b), "sharedsecret:") {
		t.Errorf("after leaving the secret is in the file: %v", err)
	}
}

func TestADamagedSecretOfTwoWordsIsSaid(t *testing.T) {
	dir := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	s, err := OpenState(dir, log)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Meet(wordsOf(t, "home", 1, ""), "ann"); err != nil {
		t.Fatal(err)
	}
	s.Close()
	file := filepath.Join(dir, identityFile)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	damaged := strings.Replace(string(b), "sharedsecret:", "sharedsecret:x", 1)
	if err := os.WriteFile(file, []byte(damaged), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenState(dir, log); err == nil || !strings.Contains(err.Error(), "the secret of the network home") || !strings.Contains(err.Error(), "--secret") {
		t.Errorf("it is told as %v", err)
	}
}
