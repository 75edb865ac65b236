package stream

import (
	"bytes"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestACertificateIsMadeOnceAndKept(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	cert, first, err := LoadOrCreateCertificate(certFile, keyFile, []string{"weft.test", "192.0.2.1", "2001:db8::1", ""})
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"weft.test", "192.0.2.1", "2001:db8::1"} {
		if err := leaf.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
	for _, clock := range []time.Time{time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC), time.Now().AddDate(-5, 0, 0), time.Now().AddDate(50, 0, 0)} {
		if clock.Before(leaf.NotBefore) || clock.After(leaf.NotAfter) {
			t.Errorf("the certificate is not valid on %v", clock)
		}
	}
	for _, f := range []string{certFile, keyFile} {
		st, err := os.Stat(f)
		if err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", f, st.Mode(), err)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 2 {
		t.Errorf("more than the two files is left: %v", left)
	}
	_, second, err := LoadOrCreateCertificate(certFile, keyFile, []string{"other.test"})
	if err != nil || !bytes.Equal(first, second) {
		t.Errorf("the second start has the fingerprint %x, not %x (%v)", second, first, err)
	}
}

func TestAStartThatWasCutOffBetweenTheTwoFilesIsMadeWhole(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	if _, _, err := LoadOrCreateCertificate(certFile, keyFile, nil); err != nil {
		t.Fatal(err)
	}
	keyPEM, _ := os.ReadFile(keyFile)
	os.Remove(certFile)
	if _, _, err := LoadOrCreateCertificate(certFile, keyFile, nil); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.ReadFile(keyFile); !bytes.Equal(after, keyPEM) {
		t.Error("the key changed")
	}
	os.Remove(keyFile)
	if _, _, err := LoadOrCreateCertificate(certFile, keyFile, nil); err == nil || !strings.Contains(err.Error(), "has lost its key") {
		t.Errorf("a certificate without its key: %v", err)
	}
}

func TestFilesThatAreNoCertificateAreNamed(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	os.WriteFile(certFile, []byte("hello"), 0o600)
	os.WriteFile(keyFile, []byte("world"), 0o600)
	if _, _, err := LoadOrCreateCertificate(certFile, keyFile, nil); err == nil || !strings.Contains(err.Error(), certFile) {
		t.Errorf("says %v", err)
	}
	os.Remove(certFile)
	if _, _, err := LoadOrCreateCertificate(certFile, keyFile, nil); err == nil {
		t.Error("a key file without a key is taken")
	}
	if _, _, err := LoadOrCreateCertificate(filepath.Join(dir, "no", "c"), filepath.Join(dir, "no", "k"), nil); err == nil {
		t.Error("a directory that is not there is no error")
	}
}
