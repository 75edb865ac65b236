package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// readDocument reads what somebody wrote, from a file, or from standard input where that is called "-". what is what it is, for
// errors; it may have so many bytes.
func readDocument(in io.Reader, what, name string, most int64) ([]byte, error) {
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("%s cannot be read: %w", what, err)
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, most+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s cannot be read: %w", what, err)
	case int64(len(b)) > most:
		return nil, fmt.Errorf("%s is longer than the %d bytes that it may have", what, most)
	}
	return b, nil
}

// maxHidden bounds what is read as a token or a secret, in bytes; real ones have some two hundred.
const maxHidden = 4096

// readHidden reads a token or a secret from where it does not stand in the command line. Nothing is an error that empty makes.
func readHidden(r io.Reader, what, from string, empty func(from string) error) (string, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxHidden))
	switch {
	case err != nil:
		return "", fmt.Errorf("reading the %s from %s: %w", what, from, err)
	case strings.TrimSpace(string(b)) == "":
		return "", empty(from)
	}
	return string(b), nil
}

// takeEnv takes a token or a secret out of the environment, where programs that are started would have it, too.
func takeEnv(name string) string {
	s := os.Getenv(name)
	os.Unsetenv(name)
	return s
}
