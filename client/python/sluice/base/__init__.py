"""What every room uses: errors, arguments, precision, hashes."""
