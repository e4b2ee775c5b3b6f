output "instance_id" {
  description = "The machine."
  value       = aws_instance.this.id
}

output "private_ip" {
  description = "Its address in the VPC."
  value       = aws_instance.this.private_ip
}

output "security_group_id" {
  description = "Allow it to reach the database: its own rules let nothing in."
  value       = aws_security_group.this.id
}

output "role_arn" {
  description = "The machine's role: name it in the policies of keys and of a secret of another account."
  value       = aws_iam_role.this.arn
}

output "lake_url" {
  description = "The lake, as the program and readers take it."
  value       = "s3://${var.lake.bucket}/${var.lake.prefix}"
}

output "rds_parameter_group_name" {
  description = "The parameter group to attach to the database; null if none was asked for."
  value       = one(aws_db_parameter_group.source[*].name)
}
